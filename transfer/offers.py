"""What a decode and a prefill worker tell each other about backends when they greet. To all others it is a Blob.

decode   Hello.offer            how prefill may write KV in place; empty if it may not
prefill  HelloAccepted.offer    its answer; empty if there is nothing to say
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from protocol.message import MAX_BLOB_BYTES, Blob, Boundary, Count, Flag, Message, Positive, Text

IpcHandle = Annotated[str, Field(strict=True, pattern=r"\A[0-9a-f]{128}\z")]  # 64 bytes, opaque


@dataclass(frozen=True)
class DeviceHandle(Message):
    """Device memory that a process of the same host can map."""

    handle: IpcHandle  # the driver's name of an allocation
    offset: Count  # bytes from the beginning of the allocation
    num_bytes: Positive


@dataclass(frozen=True)
class PoolOffer(Message):
    """Decode's KV memory, for a prefill worker on the same `host` that can open descriptor `fd` of process `pid`.

    It may write there, or into `device`, while it holds `seat`.
    """

    host: Text
    pid: Positive
    fd: Count  # the pages in host memory, or a file of seats only
    num_pages: Positive  # of each layer
    seat: Count
    device: DeviceHandle | None = None  # the pages where decode computes


@dataclass(frozen=True)
class Answer(Message):
    """Prefill's answer to the offer. Decode checks that the seat is taken."""

    in_place: Flag = False  # prefill has taken the offered seat
    device_writer: Count = 0  # the process id that has mapped decode's device memory; 0: none
    export: Blob = b""  # what decode needs to read prefill's pages, if the backend does that


@dataclass(frozen=True)
class Agreed:
    """How KV travels between two workers that have greeted each other."""

    backend: str  # its name
    in_place: bool  # whether prefill is told decode's pages and writes them itself


OFFER: Boundary[PoolOffer] = Boundary("transfer offer", (PoolOffer,), max_bytes=MAX_BLOB_BYTES)
ANSWER: Boundary[Answer] = Boundary("answer to a transfer offer", (Answer,), max_bytes=MAX_BLOB_BYTES)
