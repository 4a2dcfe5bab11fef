"""The data plane's frame: a fixed header, then raw bytes.

    KV frame    payload is whole pages of one layer, `[page_start, page_start + num_pages)` of the reservation, each of
                `KvLayout.page_bytes`; only the first `num_tokens` token slots of them are valid.
    last frame  `layer == LAST_LAYER`; payload is msgpack of LastMessage: first tokens, the plan's totals and digest.

The checksum is xxh3-64 of the header (checksum field zero) and the payload. Integers are little-endian. What it does
not know: sockets, reservations, memory.
"""

import struct
from dataclasses import dataclass, replace

import xxhash

from protocol.codec import Boundary
from protocol.errors import WireError
from protocol.message import Message
from protocol.messages_gateway import Stamp

MAGIC = 0x4E544142  # "BATN"
VERSION = 1
LAST_LAYER = 0xFFFF
HEADER = struct.Struct("<IHHQQIIIIIQQ")
HEADER_BYTES = HEADER.size


@dataclass(frozen=True)
class FrameHeader:
    """One frame's place. `sender_instance` is the prefill worker's; `sequence` counts the frames of a reservation."""

    layer: int
    sender_instance: int
    reservation: int
    attempt: int
    sequence: int
    page_start: int
    num_pages: int
    num_tokens: int
    payload_bytes: int
    checksum: int = 0

    @property
    def is_last(self) -> bool:
        """Whether this is the reservation's last frame, which carries no KV."""
        return self.layer == LAST_LAYER


@dataclass(frozen=True)
class LastMessage(Message):
    """Payload of the last frame: what decode needs beside the KV, and what it checks the KV against."""

    first_tokens: tuple[int, ...]  # by choice
    num_frames: int  # KV frames of the plan
    digest: int  # sum modulo 2**64 of the KV frames' checksums
    stamps: tuple[Stamp, ...] = ()


LAST_MESSAGE: Boundary[LastMessage] = Boundary("last frame", (LastMessage,))


def _pack(header: FrameHeader, checksum: int) -> bytes:
    return HEADER.pack(
        MAGIC,
        VERSION,
        header.layer,
        header.sender_instance,
        header.reservation,
        header.attempt,
        header.sequence,
        header.page_start,
        header.num_pages,
        header.num_tokens,
        header.payload_bytes,
        checksum,
    )


def _checksum(header: FrameHeader, payload: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(_pack(header, 0))
    digest.update(payload)
    return digest.intdigest()


def seal(header: FrameHeader, payload: bytes | memoryview) -> FrameHeader:
    """`header` with length and checksum of `payload` filled in."""
    sized = replace(header, payload_bytes=len(payload))
    return replace(sized, checksum=_checksum(sized, payload))


def pack_header(header: FrameHeader) -> bytes:
    """HEADER_BYTES bytes of a sealed header."""
    return _pack(header, header.checksum)


def unpack_header(raw: bytes | memoryview) -> FrameHeader:
    """The header in `raw`; WireError if size, magic or version is wrong."""
    if len(raw) != HEADER_BYTES:
        raise WireError(f"frame header of {len(raw)} bytes, expected {HEADER_BYTES}")
    magic, version, *fields = HEADER.unpack(raw)
    if magic != MAGIC:
        raise WireError(f"frame magic {magic:#x}, expected {MAGIC:#x}")
    if version != VERSION:
        raise WireError(f"frame version {version}, expected {VERSION}")
    return FrameHeader(*fields)


def verify(header: FrameHeader, payload: bytes | memoryview) -> None:
    """WireError unless length and checksum of `payload` are those of `header`. `payload` must be contiguous bytes."""
    if len(payload) != header.payload_bytes:
        raise WireError(f"frame payload of {len(payload)} bytes, its header says {header.payload_bytes}")
    got = _checksum(replace(header, checksum=0), payload)
    if got != header.checksum:
        raise WireError(f"frame checksum {got:#x}, its header says {header.checksum:#x}")
