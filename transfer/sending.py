"""KvSender over any wire: takes frames off the pure queues, reads page memory, seals, sends.

Runs of pages go to the wire as views of page memory, without a copy; a frame of many short runs is gathered first,
because a part has a price of its own. What it does not know: how a wire moves bytes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from protocol.errors import WireError
from protocol.frame import pack_header, seal
from protocol.messages_gateway import Stamp
from transfer.interface import WINDOW_BYTES, PageMemory, Pollable, Target
from transfer.plan import KvFrame, runs_of
from transfer.sender import Frame, PeerQueue, SendTransfer

GATHER_BELOW = 64 * 1024  # bytes: shorter runs than this, on average, are gathered
Part = bytes | memoryview


class Reading(Protocol):
    """A frame given to a wire."""

    @property
    def done(self) -> bool:
        """Whether the wire has read the frame's parts for the last time."""
        ...


class Wire(Protocol):
    """Ordered connections to peers, by instance. Nothing blocks."""

    def connect(self, instance: int, endpoint: str) -> None:
        """Dials; WireError if `endpoint` is no address."""
        ...

    def send(self, instance: int, parts: Sequence[Part]) -> Reading | None:
        """Takes one frame, whose parts it may read later without a copy; None if it cannot take any now."""
        ...

    def disconnect(self, instance: int) -> None:
        """Forgets the peer and what was not yet sent to it."""
        ...

    def close(self) -> None:
        """Forgets every peer. Idempotent."""
        ...


class FrameSender:
    """See interface.KvSender."""

    def __init__(self, memory: PageMemory, instance: int, wire: Wire, window: int = WINDOW_BYTES) -> None:
        self._memory = memory
        self._layout = memory.layout
        self._instance = instance
        self._wire = wire
        self._window = window
        self._peers: dict[int, PeerQueue] = {}
        self._transfers: dict[Target, SendTransfer] = {}  # not ended
        self._reading: dict[Target, list[Reading]] = {}
        self._totals: Counter[str] = Counter()

    @property
    def counters(self) -> Mapping[str, float]:
        """Monotonic totals, and gauges named *_now."""
        now = {
            "transfers_now": len(self._transfers),
            "frames_waiting_now": sum(len(peer) for peer in self._peers.values()),
            "bytes_in_flight_now": sum(peer.credit.in_flight for peer in self._peers.values()),
        }
        return {**self._totals, **now}

    def open(self, target: Target, source_pages: Sequence[int], num_tokens: int) -> None:
        """See KvSender."""
        if target in self._transfers:
            raise WireError(f"reservation {target.reservation} attempt {target.attempt} is being sent already")
        instance = target.peer.instance
        if instance not in self._peers:
            self._wire.connect(instance, target.peer.data)
            self._peers[instance] = PeerQueue(self._window)
        self._transfers[target] = SendTransfer(target, self._layout, source_pages, num_tokens)

    def layer_ready(self, target: Target, layer: int, num_tokens: int) -> None:
        """See KvSender."""
        transfer = self._transfers.get(target)
        if transfer is not None:
            for frame in transfer.layer_ready(layer, num_tokens):
                self._peers[target.peer.instance].push(transfer, frame)
            self._pump(target.peer.instance)

    def finish(self, target: Target, first_tokens: tuple[int, ...], stamps: tuple[Stamp, ...] = ()) -> None:
        """See KvSender."""
        transfer = self._transfers.get(target)
        if transfer is not None:
            self._peers[target.peer.instance].push(transfer, transfer.finish(first_tokens, stamps))
            self._pump(target.peer.instance)

    def cancel(self, target: Target) -> None:
        """See KvSender."""
        transfer = self._transfers.pop(target, None)
        if transfer is not None:
            transfer.cancel()
            self._ended(transfer)

    def delivered(self, target: Target) -> None:
        """See KvSender."""
        transfer = self._transfers.pop(target, None)
        if transfer is not None:
            transfer.delivered()
            self._ended(transfer)

    def add_credit(self, instance: int, num_bytes: int) -> None:
        """See KvSender."""
        peer = self._peers.get(instance)
        if peer is not None:
            peer.credit.give_back(num_bytes)
            self._pump(instance)

    def drop_peer(self, instance: int) -> None:
        """See KvSender."""
        for target in [target for target in self._transfers if target.peer.instance == instance]:
            self.cancel(target)
        if self._peers.pop(instance, None) is not None:
            self._wire.disconnect(instance)

    def pump(self) -> None:
        """See KvSender."""
        for instance in self._peers:
            self._pump(instance)

    def is_reading(self, target: Target) -> bool:
        """See KvSender."""
        reading = [entry for entry in self._reading.pop(target, ()) if not entry.done]
        if reading:
            self._reading[target] = reading
        return bool(reading)

    def pollables(self) -> list[Pollable]:
        """Nothing: new work comes from layer_ready, finish and add_credit."""
        return []

    def close(self) -> None:
        """See KvSender."""
        for instance in list(self._peers):
            self.drop_peer(instance)
        self._wire.close()

    def _ended(self, transfer: SendTransfer) -> None:
        self._peers[transfer.target.peer.instance].drop(transfer)
        self._totals[f"transfers_{transfer.state}"] += 1

    def _pump(self, instance: int) -> None:
        peer = self._peers[instance]
        while (head := peer.head()) is not None:
            num_bytes = head[0].payload_bytes(head[1])
            if not peer.credit.fits(num_bytes) or not self._send(instance, *head):
                return
            peer.pop()
            peer.credit.take(num_bytes)

    def _send(self, instance: int, transfer: SendTransfer, frame: Frame) -> bool:
        payload, shared = self._payload(transfer, frame)
        header = seal(transfer.header(frame, self._instance), *payload)
        reading = self._wire.send(instance, [pack_header(header), *payload])
        if reading is None:
            return False
        if shared:
            self._reading.setdefault(transfer.target, []).append(reading)
        transfer.sent(header)
        self._totals["frames"] += 1
        self._totals["bytes"] += header.payload_bytes
        return True

    def _payload(self, transfer: SendTransfer, frame: Frame) -> tuple[list[Part], bool]:
        """The payload's parts, and whether they are views of page memory."""
        if not isinstance(frame, KvFrame):
            return [transfer.last_payload(frame)], False
        runs = runs_of(transfer.source_pages[frame.page_start : frame.page_start + frame.num_pages])
        views = [self._memory.page_bytes_view(frame.layer, run.page_start, run.num_pages) for run in runs]
        if len(views) > 1 and sum(map(len, views)) < len(views) * GATHER_BELOW:
            return [b"".join(views)], False
        return [*views], True
