"""What crosses a socket: the base of every message, the types of its fields, and messages to bytes and back.

A message travels as msgpack of [version, name, fields] and is checked against its dataclass on arrival. No value is
converted: an int must be an int, text must be text. Unknown fields and numbers that are not finite are refused.
Checking a list stops at its first wrong item. A boundary is the set of messages that may cross one connection. Any
other message is refused by name.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgpack
from pydantic import ConfigDict, Field, Strict, TypeAdapter, ValidationError

from protocol.errors import SHOWN_CHARS, WireError, brief

M = TypeVar("M")
VERSION = 2  # 2 names a message Preempted
MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # a prompt of three million tokens
MAX_STRANGER_BYTES = 64 * 1024  # from a peer that has not registered; unpacked it may take fifty times as much memory
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
    """Carries the validation rules that Boundary applies; adds no field."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


class Boundary(Generic[M]):
    """Encodes and decodes the messages of one boundary. `name` appears in errors."""

    def __init__(self, name: str, kinds: Iterable[type[M]], max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self._adapters: dict[str, TypeAdapter[M]] = {kind.__name__: TypeAdapter(kind) for kind in kinds}

    def encode(self, message: M) -> bytes:
        """Bytes for the wire."""
        kind = type(message).__name__
        fields = self._adapters[kind].dump_python(message)
        packed: bytes = msgpack.packb([VERSION, kind, fields])
        return packed

    def decode(self, raw: bytes | memoryview, max_bytes: int | None = None) -> M:
        """The message in `raw`. `max_bytes` replaces the boundary's own limit. WireError names the fault."""
        most = self.max_bytes if max_bytes is None else max_bytes
        if len(raw) > most:
            raise WireError(f"{self.name}: message of {len(raw)} bytes, expected at most {most}")

        try:
            outer: Any = msgpack.unpackb(raw, use_list=False, strict_map_key=True, object_pairs_hook=_without_repeats)
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise WireError(f"{self.name}: not a msgpack message ({str(error)[:SHOWN_CHARS]})") from error
        if not isinstance(outer, tuple) or len(outer) != 3:
            raise WireError(f"{self.name}: got {type(outer).__name__}, expected [version, name, fields]")

        version, kind, fields = outer
        if type(version) is not int or version != VERSION:
            raise WireError(f"{self.name}: message version {brief(version)}, expected {VERSION}")
        adapter = self._adapters.get(kind) if isinstance(kind, str) else None
        if adapter is None:
            raise WireError(f"{self.name}: unknown message {brief(kind)}, expected one of {sorted(self._adapters)}")
        if not isinstance(fields, dict):
            raise WireError(f"{self.name}: {kind} carries {type(fields).__name__}, expected a map of its fields")

        try:
            return adapter.validate_python(fields)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(str(part)[:SHOWN_CHARS] for part in first["loc"]) or "(whole)"
            got = brief(first["input"])
            raise WireError(f"{self.name}: {kind}.{where}: got {got}, {first['msg']}") from error


def _without_repeats(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"key {brief(repeated)} appears twice")
    return fields
