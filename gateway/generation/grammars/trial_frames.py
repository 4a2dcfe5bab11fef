"""Frames between a gateway and the process that tries its grammars: a length in four bytes, then so many."""

from typing import BinaryIO, Final

MAX_WORK_S: Final = 5.0  # of processor time for one job
HEAD_BYTES: Final = 4


def framed(body: bytes) -> bytes:
    """The bytes of a frame."""
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; None at the end of the stream, also in the middle of a frame."""
    head = stream.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        return None
    size = int.from_bytes(head, "big")
    body = stream.read(size)
    return body if len(body) == size else None
