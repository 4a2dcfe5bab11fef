"""The base of every dataclass that crosses a socket, and the words that its fields are made of.

What arrives is never converted: an int is an int, text is text. Unknown fields and numbers that are not finite are
refused; a list is given up at its first wrong item. What it does not know: encoding (codec.py) or who sends what.
"""

from typing import Annotated, ClassVar

from pydantic import ConfigDict, FailFast, Field, Strict

MAX_COUNT = 2**63 - 1
MAX_INSTANCE = 2**64 - 1  # what a frame's header holds
MAX_ID_CHARS = 256
MAX_BLOB_BYTES = 256 * 1024
MAX_WORKER_ID_CHARS = 128  # with its instance it must fit into a routing id, which has 255 bytes
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
IpcHandle = Annotated[str, Field(strict=True, pattern=r"\A[0-9a-f]{128}\z")]  # 64 bytes, opaque
Endpoint = Annotated[str, Field(strict=True, pattern=r"\A[!-~]{0,256}\z")]
Blob = Annotated[bytes, Field(strict=True, max_length=MAX_BLOB_BYTES)]  # for a library to make sense of
Ints = Annotated[tuple[Int, ...], FailFast()]


class Message:
    """Carries the validation rules that codec.py applies; adds no field."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)
