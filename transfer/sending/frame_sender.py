"""The sender of a prefill worker, over any wire: takes frames from the queues, seals and sends them.

payloads.py reads the frames from page memory. If a device writes the peer's pages, the header leaves when the device is
done.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from protocol.errors import WireError
from protocol.frame import FrameHeader, pack_header, seal_sized, seal_sum
from protocol.kv_layout import KvLayout
from protocol.logprobs import Logprobs
from protocol.worker_facts import Stamp
from transfer.in_place.device_pools import DevicePool
from transfer.in_place.pools import Pool, Pools
from transfer.interfaces import PageMemory, Part, Reading, Wire
from transfer.offers import ANSWER, OFFER, Answer
from transfer.plan import DEVICE_FRAME_BYTES, FRAME_BYTES, IN_PLACE_FRAME_BYTES, KvFrame, start_fault
from transfer.sending.payloads import Payloads
from transfer.sending.transfer import DEVICE_WINDOW_BYTES, WINDOW_BYTES, Destination, Frame, PeerQueue, SendTransfer
from transfer.states import TransferState


class FrameSender:
    """The sender of one prefill worker; main thread only. Calls about a transfer that was cancelled, delivered or
    never opened do nothing."""

    def __init__(
        self,
        memory: PageMemory,
        instance: int,
        wire: Wire,
        window: int = WINDOW_BYTES,
        pools: Pools | None = None,
        gather_below: int | None = None,
        export: bytes = b"",
        device_window: int = DEVICE_WINDOW_BYTES,
    ) -> None:
        """Without `pools` nothing is written in place. `export`: the bytes that let decode read our pages.
        `gather_below`: see Payloads."""
        self._export = export
        self._payloads = Payloads(memory, gather_below)
        self._layout = memory.layout
        self._instance = instance
        self._wire = wire
        self._window = window
        self._device_window = device_window
        self._pools = pools or Pools()

        self._layouts: dict[int, KvLayout] = {}  # of decode workers that have greeted
        self._sent: dict[int, KvLayout] = {}  # what they get
        self._peers: dict[int, PeerQueue] = {}
        self._transfers: dict[Destination, SendTransfer] = {}  # transfers that have not ended
        self._reading: dict[Destination, list[Reading]] = {}
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

    def attach(self, instance: int, layout: KvLayout, offer: bytes, sent: KvLayout | None = None) -> bytes:
        """The decode worker `instance` has greeted, maybe again. Everything about it is dropped, as by drop_peer().

        Returns the answer to the offer of its pages, of `layout`. WireError if they cannot be written but must. It gets
        the layers of `sent`, the first ones of our layout; None: all.
        """
        self.drop_peer(instance)
        in_place = self._pools.attach(instance, layout, OFFER.decode(offer) if offer else None)
        on_device = isinstance(self._pools.get(instance), DevicePool)
        self._layouts[instance] = layout
        self._sent[instance] = sent or self._layout
        return ANSWER.encode(Answer(in_place, os.getpid() if on_device else 0, self._export))

    def reads_host(self, destination: Destination) -> bool:
        """Whether the KV of such a transfer must be in host memory: no device writes it from its own."""
        return destination.pages is None or not isinstance(self._pools.get(destination.peer.instance), DevicePool)

    def open(self, destination: Destination, source_pages: Sequence[int], num_tokens: int) -> SendTransfer:
        """Announces a transfer and connects to its peer if needed.

        `source_pages`: the caller's pages of the whole prompt, in order. WireError if the peer's endpoint is no
        address, if this destination is already open, or if its start or its pages cannot be.
        """
        if destination in self._transfers:
            raise WireError(
                f"reservation {destination.reservation} attempt {destination.attempt} is being sent already"
            )
        theirs = self._layouts.get(destination.peer.instance, self._layout)
        if (fault := start_fault(destination.start, num_tokens, self._layout.page_size, theirs.page_size)) is not None:
            raise WireError(fault)

        pool = None if destination.pages is None else self._pool(destination, destination.pages, num_tokens)
        on_device, instance = isinstance(pool, DevicePool), destination.peer.instance

        if instance not in self._peers:
            self._wire.connect(instance, destination.peer.data)
            self._peers[instance] = PeerQueue(self._device_window if on_device else self._window)

        frame_bytes = DEVICE_FRAME_BYTES if on_device else FRAME_BYTES if pool is None else IN_PLACE_FRAME_BYTES
        target_layout = None if pool is None else pool.layout
        layout = self._sent.get(instance, self._layout)
        transfer = SendTransfer(destination, layout, source_pages, num_tokens, target_layout, frame_bytes)
        self._transfers[destination] = transfer
        return transfer

    def layers_ready(self, destination: Destination, layers: Iterable[int], num_tokens: int) -> None:
        """K and V of tokens [0, num_tokens) of `layers` are final, also in host memory if it reads_host().

        Whole pages leave at once, as credit allows; a device is given layers together that are ready together. The
        partial last page leaves only when `num_tokens` is the total. A layer that the peer does not get is ignored.
        """
        transfer = self._transfers.get(destination)
        if transfer is None:
            return
        peer = self._peers[destination.peer.instance]
        for layer in layers:
            if layer < transfer.num_layers:
                for frame in transfer.layer_ready(layer, num_tokens):
                    peer.push(transfer, frame)
        self._pump(destination.peer.instance)

    def finish(
        self,
        destination: Destination,
        first_tokens: tuple[int, ...],
        stamps: tuple[Stamp, ...] = (),
        num_cached: int = 0,
        hidden: bytes = b"",
        logprobs: tuple[Logprobs, ...] = (),
    ) -> None:
        """Every layer is ready in full. The last frame follows the KV frames, if there are any. See LastMessage."""
        transfer = self._transfers.get(destination)
        if transfer is not None:
            last = transfer.finish(first_tokens, stamps, num_cached, hidden, logprobs)
            self._peers[destination.peer.instance].push(transfer, last)
            self._pump(destination.peer.instance)

    def cancel(self, destination: Destination) -> None:
        """Nothing more is sent or written after this call. Waits for what a device has begun. Idempotent."""
        self._end(destination, TransferState.CANCELLED)

    def delivered(self, destination: Destination) -> None:
        """KvDelivered has arrived. Before the last frame was sent, that is a failure."""
        transfer = self._transfers.get(destination)
        is_sent = transfer is not None and self._peers[destination.peer.instance].has_sent(transfer)
        self._end(destination, TransferState.DELIVERED if is_sent else TransferState.FAILED)

    def add_credit(self, instance: int, reservation: int, num_bytes: int) -> None:
        """DataCredit has arrived from the decode worker `instance`. Sends the frames that waited for it."""
        peer = self._peers.get(instance)
        if peer is not None:
            peer.credit.give_back(reservation, num_bytes)
            self._pump(instance)

    def drop_peer(self, instance: int) -> None:
        """The decode worker `instance` is lost: cancels its transfers and closes its connection. Idempotent."""
        for destination in [destination for destination in self._transfers if destination.peer.instance == instance]:
            self.cancel(destination)
        if self._peers.pop(instance, None) is not None:
            self._wire.disconnect(instance)
        self._pools.drop(instance)
        self._layouts.pop(instance, None)
        self._sent.pop(instance, None)

    def broken(self) -> list[Destination]:
        """Transfers whose frames may have been lost with a connection since the last call. Only the caller can act."""
        lost = set(self._wire.broken())
        return [
            destination
            for destination, transfer in self._transfers.items()
            if destination.peer.instance in lost and transfer.num_sent
        ]

    def pump(self) -> None:
        """Sends what credit allows. Never blocks."""
        for instance in self._peers:
            self._pump(instance)

    @property
    def is_moving(self) -> bool:
        """Whether pump() must be called again at once: a device copies and signals nothing when it is done."""
        return any(peer.is_moving for peer in self._peers.values())

    def is_reading(self, destination: Destination) -> bool:
        """Whether the transport may still read the transfer's source pages, even after its end. Unknown: False."""
        reading = [entry for entry in self._reading.pop(destination, ()) if not entry.done]
        if reading:
            self._reading[destination] = reading
        return bool(reading)

    def close(self) -> None:
        """Ends all transfers and connections. Idempotent."""
        for instance in list(self._peers):
            self.drop_peer(instance)
        self._pools.close()
        self._wire.close()

    def _pool(self, destination: Destination, pages: Sequence[int], num_tokens: int) -> Pool:
        """The memory with the destination's `pages`. WireError if they may not be written."""
        pool = self._pools.get(destination.peer.instance)
        if pool is None:
            raise WireError(f"the KV memory of {destination.peer.worker_id} is not mapped")

        num_pages = pool.layout.num_pages(num_tokens - destination.start)
        if len(pages) != num_pages or len(set(pages)) != len(pages):
            raise WireError(f"{len(pages)} pages, expected {num_pages} different ones")
        if pages and not 1 <= min(pages) <= max(pages) < pool.num_pages:
            raise WireError(f"pages {min(pages)} to {max(pages)}, expected 1 to {pool.num_pages - 1}")
        return pool

    def _end(self, destination: Destination, state: TransferState) -> None:
        transfer = self._transfers.pop(destination, None)
        if transfer is not None:
            transfer.move(state)
            peer = self._peers[destination.peer.instance]
            peer.drop(transfer)
            peer.credit.end(destination.reservation)
            self._totals[f"transfers_{state}"] += 1

    def _pump(self, instance: int) -> None:
        peer = self._peers[instance]
        while self._send_moved(instance) and (head := peer.head()) is not None:
            num_bytes = head.transfer.payload_bytes(head.frame)
            if not peer.credit.fits(num_bytes) or not self._begin(instance, *head):
                return

    def _begin(self, instance: int, transfer: SendTransfer, frame: Frame) -> bool:
        """Sends the frame at the head, or has a device move its KV and that of frames that go on with it. False if not
        now: a last frame waits for all moves."""
        peer, pool = self._peers[instance], self._pools.get(instance)
        if isinstance(pool, DevicePool) and transfer.is_in_place and isinstance(frame, KvFrame):
            frames = peer.pop_together()
            layers = range(frame.layer, frame.layer + len(frames))
            peer.begin(transfer, frames, pool.begin(layers, transfer.copy(frame)))
            return True

        num_bytes = transfer.payload_bytes(frame)
        if peer.is_moving or not self._send(instance, transfer, frame):
            return False
        peer.pop(num_bytes)
        return True

    def _send_moved(self, instance: int) -> bool:
        """Sends the headers of frames that a device has moved. False if the wire accepts no more."""
        peer = self._peers[instance]
        while (moved := peer.moved()) is not None:
            header = seal_sum(
                moved.transfer.header(moved.frame, self._instance), moved.moving.totals[moved.layer_moved]
            )
            if self._give(instance, moved.transfer, header, ()) is None:
                return False
            peer.pop_moved()
        return True

    def _send(self, instance: int, transfer: SendTransfer, frame: Frame) -> bool:
        payload = self._payloads.read(transfer, frame, self._pools.get(instance))
        header = seal_sized(transfer.header(frame, self._instance), payload.content)
        reading = self._give(instance, transfer, header, payload.parts)
        if reading is not None and payload.is_shared:
            self._reading.setdefault(transfer.destination, []).append(reading)
        return reading is not None

    def _give(
        self, instance: int, transfer: SendTransfer, header: FrameHeader, parts: Sequence[Part]
    ) -> Reading | None:
        reading = self._wire.send(instance, [pack_header(header), *parts])
        if reading is not None:
            transfer.sent(header)
            self._totals["frames"] += 1
            self._totals["bytes"] += header.payload_bytes
        return reading
