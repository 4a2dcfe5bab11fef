"""The data plane's frame: a fixed header, then raw bytes.

    KV frame    payload: pages `[page_start, page_start + num_pages)` of the prompt in one layer, each of
                `LayerLayout.page_bytes`. Only their first `num_tokens` token slots are valid.
    last frame  `layer == LAST_LAYER`; payload: msgpack of LastMessage.

The checksum is xxh3-64 of the header (checksum field zero) and the payload. For a payload in device memory it covers
the header and the device's sum of the payload. The header says which. Several parts of a payload count as if joined.
Integers are little-endian.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple

import xxhash
from pydantic import FailFast

from protocol.errors import WireError
from protocol.logprobs import Logprobs
from protocol.message import Blob, Boundary, Count, Instance, Ints, Message
from protocol.worker_facts import Stamps

MAGIC = 0x4E544142  # "BATN"
VERSION = 1
LAST_LAYER = 0xFFFF
HEADER = struct.Struct("<IHHQQIIIIIQQ")
HEADER_BYTES = HEADER.size


class Check(IntEnum):
    """What the checksum covers of the payload. It travels in the upper byte of the version."""

    BYTES = 0  # all bytes
    DEVICE_SUM = 1  # the device's sum of them; see transfer/in_place/device_pools.py


CHECKS = tuple(Check)


class FrameHeader(NamedTuple):
    """In the order of HEADER. `sender_instance` is prefill's. `sequence` counts the frames of a reservation."""

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
    check: int = Check.BYTES

    @property
    def is_last(self) -> bool:
        """Whether this is the reservation's last frame, which carries no KV."""
        return self.layer == LAST_LAYER


@dataclass(frozen=True)
class LastMessage(Message):
    """Payload of the last frame: the first tokens, what a draft begins with, and the totals that the decode worker
    checks the KV against.

    The KV of a draft that depends on the first tokens is computed by decode: each choice has another one.
    """

    first_tokens: Ints  # by choice
    num_frames: Count  # KV frames of the plan
    digest: Instance  # extend_digest of the KV frames, from 0
    stamps: Stamps = ()
    num_cached: Count = 0  # prompt tokens whose KV prefill had
    hidden: Blob = b""  # see Join; empty without a draft
    logprobs: Annotated[tuple[Logprobs, ...], FailFast()] = ()  # of the first tokens, if the request asks for them


LAST_MESSAGE: Boundary[LastMessage] = Boundary("last frame", (LastMessage,))


def _pack(header: FrameHeader, checksum: int) -> bytes:
    return HEADER.pack(MAGIC, VERSION | header.check << 8, *header[:-2], checksum)


def checksum(header: FrameHeader, parts: Iterable[bytes | memoryview]) -> int:
    """The checksum of a frame; the one in `header` is ignored. Each part is used before the next one is taken."""
    digest = xxhash.xxh3_64(_pack(header, 0))
    for part in parts:
        digest.update(part)
    return digest.intdigest()


def seal(header: FrameHeader, *parts: bytes | memoryview) -> FrameHeader:
    """`header` with the payload's length and checksum. Each part is contiguous bytes."""
    return seal_sized(header._replace(payload_bytes=sum(len(part) for part in parts)), parts)


def seal_sized(header: FrameHeader, parts: Iterable[bytes | memoryview]) -> FrameHeader:
    """`header`, which has the payload's length already, with its checksum."""
    return header._replace(checksum=checksum(header, parts))


def seal_sum(header: FrameHeader, device_sum: int) -> FrameHeader:
    """`header` with the checksum of a payload in device memory, from the device's sum of it."""
    return seal_sized(header._replace(check=Check.DEVICE_SUM), [device_sum.to_bytes(8, "little")])


def extend_digest(digest: int, header: FrameHeader) -> int:
    """The digest of a transfer after one more sealed KV frame. The order of frames does not matter."""
    return (digest + header.checksum) % 2**64


def pack_header(header: FrameHeader) -> bytes:
    """The HEADER_BYTES bytes of a sealed header."""
    return _pack(header, header.checksum)


def unpack_header(raw: bytes | memoryview) -> FrameHeader:
    """The header in `raw`; WireError if size, magic or version is wrong."""
    if len(raw) != HEADER_BYTES:
        raise WireError(f"frame header of {len(raw)} bytes, expected {HEADER_BYTES}")
    magic, version, *fields = HEADER.unpack(raw)
    if magic != MAGIC:
        raise WireError(f"frame magic {magic:#x}, expected {MAGIC:#x}")
    kind, version = divmod(version, 256)
    if version != VERSION:
        raise WireError(f"frame version {version}, expected {VERSION}")
    if kind not in CHECKS:
        raise WireError(f"frame checksum of kind {kind}, expected one of {', '.join(map(str, CHECKS))}")
    return FrameHeader._make((*fields, kind))


def verify_checksum(header: FrameHeader, parts: Iterable[bytes | memoryview]) -> None:
    """WireError unless the payload's checksum matches `header`. The caller has checked its length."""
    got = checksum(header, parts)
    if got != header.checksum:
        raise WireError(f"frame checksum {got:#x}, its header says {header.checksum:#x}")
