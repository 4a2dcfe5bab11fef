"""A Wire over calls that may block: its own thread gives frames to peers' porters, many in one parcel.

    send() --frames of a peer wait--> thread --one parcel of all that wait--> porter

Each call has a cost. So while MAX_CALLS calls run, frames gather, and the next call takes them together. Credit bounds
what waits.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from protocol.errors import WireError
from runtime.log import Refusals, get_log
from transfer.backends.ray.porter import Parcel
from transfer.interfaces import Part

PARCEL_BYTES = 8 * 1024 * 1024  # of one call; a larger frame goes alone
MAX_CALLS = 2  # calls that run at one porter: it hands on the first while the second arrives
CLOSE_S = 5.0  # for the call that runs when the wire is closed
SCHEME = "ray://"


class PorterHandle(Protocol):
    """A peer's porter, as this process sees it."""

    def carry(self, parcel: Parcel) -> "Future[Any]":
        """Takes a parcel and has read its bytes when it returns. The future fails if the parcel was lost. WireError if
        that is certain at once."""


@dataclass(eq=False)
class Transit:
    """A frame on its way to a porter."""

    parts: Sequence[Part]
    done: bool = False  # whether its parts will not be read again

    @property
    def num_bytes(self) -> int:
        """Of all parts."""
        return sum(map(len, self.parts))


@dataclass(eq=False)
class _Peer:
    instance: int
    endpoint: str
    waiting: deque[Transit] = field(default_factory=deque)
    porter: PorterHandle | None = None  # only the thread uses it; found before the first parcel
    num_calls: int = 0  # that run


class ParcelWire:
    """See transfer.interfaces.Wire. `find` returns the porter of an endpoint or raises WireError. It may block."""

    def __init__(self, find: Callable[[str], PorterHandle]) -> None:
        self._find = find
        self._peers: dict[int, _Peer] = {}
        self._lock = threading.Lock()  # guards the fields below and the frames that wait for a peer
        self._broken: set[int] = set()
        self._losses = Refusals(get_log("transfer"), "KV got lost on its way to the porter")
        self._turns: SimpleQueue[_Peer | None] = SimpleQueue()  # peers whose frames may leave; None ends the thread
        self._thread = threading.Thread(target=self._run, name="parcels", daemon=True)
        self._thread.start()

    def connect(self, instance: int, endpoint: str) -> None:
        """See Wire. The first frame shows whether the porter exists."""
        if not endpoint.startswith(SCHEME):
            raise WireError(f"data address {endpoint!r}, expected one that begins with {SCHEME}")
        self._peers[instance] = _Peer(instance, endpoint)

    def send(self, instance: int, parts: Sequence[Part]) -> Transit:
        """See Wire."""
        peer, transit = self._peers[instance], Transit(parts)
        with self._lock:
            peer.waiting.append(transit)
        self._turns.put(peer)
        return transit

    def broken(self) -> list[int]:
        """See Wire."""
        assert self._thread.is_alive(), "the thread that gives frames to porters has ended"
        with self._lock:
            broken, self._broken = self._broken, set()
        return sorted(broken)

    def disconnect(self, instance: int) -> None:
        """See Wire. Frames that the thread holds are still read; `done` then tells so."""
        peer = self._peers.pop(instance)
        with self._lock:
            for frame in peer.waiting:
                frame.done = True
            peer.waiting.clear()
            self._broken.discard(instance)

    def close(self) -> None:
        """See Wire."""
        for instance in list(self._peers):
            self.disconnect(instance)
        self._turns.put(None)
        self._thread.join(CLOSE_S)

    # ---- the thread ----

    def _run(self) -> None:
        while (peer := self._turns.get()) is not None:
            if frames := self._gather(peer):
                self._give(peer, frames)

    def _gather(self, peer: _Peer) -> list[Transit]:
        frames: list[Transit] = []
        num_bytes = 0
        with self._lock:
            if peer.num_calls >= MAX_CALLS:
                return []
            while peer.waiting and (not frames or num_bytes + peer.waiting[0].num_bytes <= PARCEL_BYTES):
                frames.append(peer.waiting.popleft())
                num_bytes += frames[-1].num_bytes
            peer.num_calls += bool(frames)
        return frames

    def _give(self, peer: _Peer, frames: list[Transit]) -> None:
        parcel = [[np.frombuffer(part, np.uint8) for part in frame.parts] for frame in frames]
        try:
            if peer.porter is None:
                peer.porter = self._find(peer.endpoint)
            peer.porter.carry(parcel).add_done_callback(lambda future: self._ended(peer, future.exception()))
        except WireError as error:
            self._ended(peer, error)
        finally:
            del parcel  # views of page memory
            for frame in frames:
                frame.done = True

    def _ended(self, peer: _Peer, error: BaseException | None) -> None:
        """A call has ended; with an error, its parcel is lost. Any thread."""
        with self._lock:
            peer.num_calls -= 1
            if error is not None:
                self._losses.note(type(error).__name__, instance=peer.instance, why=str(error)[:200])
                if self._peers.get(peer.instance) is peer:
                    self._broken.add(peer.instance)
        self._turns.put(peer)
