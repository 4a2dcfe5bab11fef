"""The notice of a frame that decode is to read: where its payload lies in the prefill worker's memory. Pure.

    magic, number of the frame, then address and length of each piece; little-endian

The frame's header follows as a second part and names the sender.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import WireError
from protocol.frame import FrameHeader, unpack_header

_MAGIC = 0x4C58494E  # "NIXL"
_HEAD = struct.Struct("<IQI")
_PIECE = struct.Struct("<QQ")
MAX_PIECES = 4096


@dataclass(frozen=True)
class Region:
    """Bytes of memory of some process: [address, address + num_bytes)."""

    address: int
    num_bytes: int

    def contains(self, other: "Region") -> bool:
        """Whether `other` lies inside."""
        return self.address <= other.address and other.address + other.num_bytes <= self.address + self.num_bytes


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
    pieces = tuple(Region(*each) for each in _PIECE.iter_unpack(parts[0][_HEAD.size :]))
    header = unpack_header(parts[1])
    total = sum(piece.num_bytes for piece in pieces)
    if total > max_bytes or total != header.payload_bytes or not all(piece.num_bytes for piece in pieces):
        raise WireError(f"notice of {total} bytes, its header says {header.payload_bytes}, at most {max_bytes}")
    return Notice(number, pieces, header, bytes(parts[1]))
