r"""Decode's side of one prefill worker: the frames that it has given notice of are read into a ring, and come in order.

    noticed --room in the ring--> being read --over--> handed out --next call--> its part of the ring is free
                                          \-> failed: handed out without its payload

A read that takes long holds up only this worker's frames. What it does not know: sockets, reservations, pages.
"""

import mmap
from collections import deque
from dataclasses import dataclass

from protocol.errors import WireError
from runtime.log import get_log
from transfer.backends.nixl.agent import Agent, Read, address_of
from transfer.backends.nixl.notice import Notice, Region
from transfer.backends.nixl.staging import Ring

RING_FRAMES = 4  # of the largest size: being read while another lands
MAX_NOTICED = 65_536  # frames; credit keeps an honest worker far below

log = get_log("transfer")


@dataclass
class _Pull:
    """One frame; `read` is absent where it could not begin."""

    notice: Notice
    payload: memoryview
    read: Read | None
    failure: str = ""

    @property
    def is_over(self) -> bool:
        return self.read is None or self.read.is_over


class Source:
    """One prefill worker, by what it exports."""

    def __init__(self, agent: Agent, instance: int, export: bytes, max_frame_bytes: int) -> None:
        """WireError if it is no export."""
        self.export = export
        self._agent = agent
        self._instance = instance
        self._peer = agent.meet(export)
        self._is_broken = False  # something could not be read: perhaps the connection is gone
        self._ring = Ring(RING_FRAMES * max_frame_bytes)
        self._memory = memoryview(mmap.mmap(-1, self._ring.num_bytes))  # pages are real once something was read there
        self._region = Region(address_of(self._memory), self._ring.num_bytes)
        agent.register(self._region)
        self._noticed: deque[Notice] = deque()
        self._pulls: deque[_Pull] = deque()
        self._is_handed_out = False

    @property
    def is_busy(self) -> bool:
        """Whether next_frame() is due again."""
        return bool(self._pulls or self._noticed)

    def announce(self, notice: Notice) -> bool:
        """A frame is there to be read; False if too many are."""
        if len(self._noticed) >= MAX_NOTICED:
            return False
        self._noticed.append(notice)
        return True

    def next_frame(self) -> list[memoryview] | None:
        """The next frame that is here; the one before may not be touched any more. One whose read has failed comes
        without payload."""
        self._free()
        self._begin()
        if not self._pulls or not self._pulls[0].is_over:
            return None
        pull, header = self._pulls[0], memoryview(self._pulls[0].notice.raw_header)
        self._is_handed_out = True
        failure = pull.failure if pull.read is None else pull.read.failure
        if not failure:
            return [header, pull.payload]
        log.warning("KV could not be read", instance=self._instance, why=failure)
        self._agent.notify(self._peer, note_of(pull.notice.number))
        self._is_broken = True
        return [header]

    def abandon(self) -> None:
        """Ends every read; the ring is to be kept until the agent is closed."""
        for pull in self._pulls:
            if pull.read is not None and not pull.is_over:
                pull.read.close()
        self._pulls.clear()

    def close(self) -> bool:
        """Takes no more; False while a read still writes into the ring: to be called again then."""
        self._noticed.clear()
        if self._is_reading():
            return False
        self._pulls.clear()
        self._agent.forget(self._peer)
        self._agent.unregister(self._region)
        return True

    def _is_reading(self) -> bool:
        return any(not pull.is_over for pull in self._pulls)

    def _free(self) -> None:
        if self._is_handed_out:
            self._pulls.popleft()
            self._ring.give_back()
            self._is_handed_out = False

    def _begin(self) -> None:
        """Begins reads until one is here, or the ring is full."""
        while self._noticed and not (self._pulls and self._pulls[0].is_over):
            start = self._ring.take(self._noticed[0].header.payload_bytes)
            if start is None:
                return
            notice = self._noticed.popleft()
            payload = self._memory[start : start + notice.header.payload_bytes]
            self._pulls.append(self._pull(notice, payload, self._region.address + start))

    def _pull(self, notice: Notice, payload: memoryview, address: int) -> _Pull:
        into = []
        for piece in notice.pieces:
            into.append(Region(address, piece.num_bytes))
            address += piece.num_bytes
        try:
            self._mend()
            read = self._agent.read(self._peer, into, notice.pieces, note_of(notice.number))
        except WireError as error:
            return _Pull(notice, payload, None, error.message)
        return _Pull(notice, payload, read)

    def _mend(self) -> None:
        """Connects anew after a failure, once that harms no other read."""
        if self._is_broken and not self._is_reading():
            self._agent.forget(self._peer)
            self._peer = self._agent.meet(self.export)
            self._is_broken = False


def note_of(number: int) -> bytes:
    """What prefill hears of a frame that is read no more."""
    return number.to_bytes(8, "little")
