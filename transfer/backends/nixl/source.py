r"""Decode's side of one prefill worker: reads announced frames into a ring and returns them in order.

    noticed --room in the ring--> being read --over--> handed out --next call--> its part of the ring is free
                                          \-> failed: handed out without its payload

A notice says where a frame's payload lies in the prefill worker's memory:

    magic, number of the frame, then address and length of each piece; little-endian

The frame's header follows as a second part and names the sender. A slow read delays only this worker's frames.
"""

import mmap
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import WireError
from protocol.frame import FrameHeader, unpack_header
from runtime.log import get_log
from transfer.backends.nixl.agent import Agent, Read, Region, address_of

_MAGIC = 0x4C58494E  # "NIXL"
_HEAD = struct.Struct("<IQI")
_PIECE = struct.Struct("<QQ")
MAX_PIECES = 4096


@dataclass(frozen=True)
class Notice:
    """One frame. `pieces` are its payload, in order."""

    number: int
    pieces: tuple[Region, ...]
    header: FrameHeader
    raw_header: bytes


def pack_notice(number: int, pieces: Sequence[Region]) -> bytes:
    """The notice's first part. The second is the frame's header."""
    fields = [field for piece in pieces for field in (piece.address, piece.num_bytes)]
    return _HEAD.pack(_MAGIC, number, len(pieces)) + struct.pack(f"<{len(fields)}Q", *fields)


def is_notice(parts: Sequence[bytes | memoryview]) -> bool:
    """Whether it claims to be a notice. Otherwise it is a frame with its payload."""
    return bytes(parts[0][:4]) == _MAGIC.to_bytes(4, "little")


def unpack_notice(parts: Sequence[bytes | memoryview], max_bytes: int) -> Notice:
    """Reads a notice from any peer. WireError unless it names between 1 and `max_bytes` bytes, and as many as the
    header."""
    if len(parts) != 2 or len(parts[0]) < _HEAD.size:
        raise WireError(f"notice of {len(parts)} parts, the first of {len(parts[0])} bytes")
    _, number, count = _HEAD.unpack_from(parts[0])
    if not 1 <= count <= MAX_PIECES or len(parts[0]) != _HEAD.size + count * _PIECE.size:
        raise WireError(f"notice of {len(parts[0])} bytes for {count} pieces, expected 1 to {MAX_PIECES}")
    pieces = tuple(Region(*fields) for fields in _PIECE.iter_unpack(parts[0][_HEAD.size :]))
    header = unpack_header(parts[1])
    total = sum(piece.num_bytes for piece in pieces)
    if total > max_bytes or total != header.payload_bytes or not all(piece.num_bytes for piece in pieces):
        raise WireError(f"notice of {total} bytes, its header says {header.payload_bytes}, at most {max_bytes}")
    return Notice(number, pieces, header, bytes(parts[1]))


RING_FRAMES = 4  # frames of the largest size: some are read while another lands
MAX_NOTICED = 65_536  # credit keeps an honest worker far below

log = get_log("transfer")


@dataclass
class _Pull:
    """One frame. `read` is None if it could not begin."""

    notice: Notice
    payload: memoryview
    read: Read | None
    failure: str = ""

    @property
    def is_over(self) -> bool:
        return self.read is None or self.read.is_over


class Ring:
    """Allocates parts of a ring of bytes. They are contiguous, and freed in the order in which they were taken. A part
    that does not fit before the end begins at the start again."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._parts: deque[tuple[int, int]] = deque()  # [start, end), oldest first

    def take(self, num_bytes: int) -> int | None:
        """Takes `num_bytes` bytes and returns their start, or None if there is no room."""
        assert 0 < num_bytes <= self.num_bytes, (num_bytes, self.num_bytes)
        start = self._room(num_bytes)
        if start is not None:
            self._parts.append((start, start + num_bytes))
        return start

    def give_back(self) -> None:
        """Frees the oldest part."""
        self._parts.popleft()

    def _room(self, num_bytes: int) -> int | None:
        if not self._parts:
            return 0
        oldest, newest_end = self._parts[0][0], self._parts[-1][1]
        if newest_end <= oldest:  # the newest part began at the start again
            return newest_end if newest_end + num_bytes <= oldest else None
        if newest_end + num_bytes <= self.num_bytes:
            return newest_end
        return 0 if num_bytes <= oldest else None


class Source:
    """One prefill worker, identified by its export."""

    def __init__(self, agent: Agent, instance: int, export: bytes, max_frame_bytes: int) -> None:
        """WireError if `export` is invalid."""
        self.export = export
        self._agent = agent
        self._instance = instance
        self._peer = agent.meet(export)
        self._is_broken = False  # a read failed: perhaps the connection is lost
        self._ring = Ring(RING_FRAMES * max_frame_bytes)
        self._memory = memoryview(mmap.mmap(-1, self._ring.num_bytes))  # its pages are allocated on first use
        self._region = Region(address_of(self._memory), self._ring.num_bytes)
        agent.register(self._region)
        self._noticed: deque[Notice] = deque()
        self._pulls: deque[_Pull] = deque()
        self._is_handed_out = False

    @property
    def is_busy(self) -> bool:
        """Whether next_frame() must be called again."""
        return bool(self._pulls or self._noticed)

    def announce(self, notice: Notice) -> bool:
        """Queues a frame to be read. False if too many are queued."""
        if len(self._noticed) >= MAX_NOTICED:
            return False
        self._noticed.append(notice)
        return True

    def next_frame(self) -> list[memoryview] | None:
        """The next frame that has arrived. The frame before must not be used any more. A frame whose read failed comes
        without its payload."""
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
        """Ends every read. Keep the ring until the agent is closed."""
        for pull in self._pulls:
            if pull.read is not None and not pull.is_over:
                pull.read.close()
        self._pulls.clear()

    def close(self) -> bool:
        """Accepts no more frames. False while a read still writes into the ring; then call it again."""
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
        """Begins reads until one has arrived or the ring is full."""
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
        """Connects again after a failure, once no other read runs."""
        if self._is_broken and not self._is_reading():
            self._agent.forget(self._peer)
            self._peer = self._agent.meet(self.export)
            self._is_broken = False


def note_of(number: int) -> bytes:
    """The note by which prefill learns that a frame will not be read again."""
    return number.to_bytes(8, "little")
