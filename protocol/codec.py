"""Messages to bytes and back: msgpack of [version, name, fields], checked against the dataclass on arrival.

A boundary is the set of messages that may cross one connection in one direction or both; anything else is refused by
name. What it does not know: sockets.
"""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgpack
from pydantic import TypeAdapter, ValidationError

from protocol.errors import WireError

M = TypeVar("M")
VERSION = 1
MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class Boundary(Generic[M]):
    """Encodes and decodes the messages of one boundary. `name` appears in errors."""

    def __init__(self, name: str, kinds: Iterable[type[M]]) -> None:
        self.name = name
        self._adapters: dict[str, TypeAdapter[M]] = {kind.__name__: TypeAdapter(kind) for kind in kinds}

    def encode(self, message: M) -> bytes:
        """Bytes for the wire."""
        kind = type(message).__name__
        fields = self._adapters[kind].dump_python(message)
        packed: bytes = msgpack.packb([VERSION, kind, fields])
        return packed

    def decode(self, raw: bytes | memoryview) -> M:
        """The message in `raw`; WireError names what is wrong with it."""
        if len(raw) > MAX_MESSAGE_BYTES:
            raise WireError(f"{self.name}: message of {len(raw)} bytes, expected at most {MAX_MESSAGE_BYTES}")
        try:
            outer: Any = msgpack.unpackb(raw, use_list=False, strict_map_key=True)
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise WireError(f"{self.name}: not a msgpack message ({error})") from error
        if not isinstance(outer, tuple) or len(outer) != 3:
            raise WireError(f"{self.name}: got {type(outer).__name__}, expected [version, name, fields]")
        version, kind, fields = outer
        if version != VERSION:
            raise WireError(f"{self.name}: message version {version!r}, expected {VERSION}")
        adapter = self._adapters.get(kind) if isinstance(kind, str) else None
        if adapter is None:
            raise WireError(
                f"{self.name}: unknown message {str(kind)[:80]!r}, expected one of {sorted(self._adapters)}"
            )
        if not isinstance(fields, dict):
            raise WireError(f"{self.name}: {kind} carries {type(fields).__name__}, expected a map of its fields")
        try:
            return adapter.validate_python(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "(whole)"
            got = repr(first["input"])[:80]
            raise WireError(f"{self.name}: {kind}.{where}: got {got}, {first['msg']}") from error
