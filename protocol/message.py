"""The base of every dataclass that crosses a socket, and the types of its fields.

No value is converted on arrival: an int must be an int, text must be text. Unknown fields and numbers that are not
finite are refused. Checking a list stops at its first wrong item.
"""

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, Strict

MAX_COUNT = 2**63 - 1
MAX_INSTANCE = 2**64 - 1  # the largest that fits into a frame's header
MAX_ID_CHARS = 256
MAX_BLOB_BYTES = 256 * 1024
MAX_WORKER_ID_CHARS = 128  # id and instance must fit into a routing id of 255 bytes
WORKER_ID_PATTERN = rf"\A[!-~]{{1,{MAX_WORKER_ID_CHARS}}}\z"  # printable ASCII without blanks

Int = Annotated[int, Strict()]
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
Instance = Annotated[int, Field(strict=True, ge=0, le=MAX_INSTANCE)]
Number = Annotated[float, Strict()]
Seconds = Annotated[float, Field(strict=True, ge=0)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]
Id = Annotated[str, Field(strict=True, min_length=1, max_length=MAX_ID_CHARS)]  # of a request
WorkerId = Annotated[str, Field(strict=True, pattern=WORKER_ID_PATTERN)]
Endpoint = Annotated[str, Field(strict=True, pattern=r"\A[!-~]{0,256}\z")]
Blob = Annotated[bytes, Field(strict=True, max_length=MAX_BLOB_BYTES)]  # bytes that a library reads
Ints = Annotated[tuple[Int, ...], Field(fail_fast=True)]


class Message:
    """Carries the validation rules that codec.py applies; adds no field."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)
