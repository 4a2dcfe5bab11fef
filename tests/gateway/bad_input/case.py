"""One bad request, written for the bundled model, whose context is 2,048 tokens of 1,024. tests/gateway/golden has what
each must be told."""

import json
from dataclasses import dataclass
from typing import Any

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
USER = '"messages": [{"role": "user", "content": "a"}]'


@dataclass(frozen=True)
class Case:
    """`parts` are sent one after the other, then it is read until the server closes."""

    name: str
    parts: tuple[bytes, ...]


def post(path: str, body: bytes, *headers: str, kind: str | None = "application/json") -> tuple[bytes, ...]:
    """A whole request that ends its connection."""
    lines = [f"POST {path} HTTP/1.1", "host: a", "connection: close", f"content-length: {len(body)}", *headers]
    if kind is not None:
        lines.append(f"content-type: {kind}")
    return ("\r\n".join([*lines, "", ""]).encode("latin-1"), body)


def posted(path: str, body: str | bytes) -> Case:
    """JSON, or what is none."""
    raw = body if isinstance(body, bytes) else body.encode()
    return Case(f"{path} {raw[:70]!r}", post(path, raw))


def served(path: str, **fields: Any) -> Case:
    """Odd, and fine."""
    return Case(f"{path} {str(fields)[:70]}", post(path, json.dumps({"max_tokens": 1, **fields}).encode()))


def with_field(path: str, field: str, value: str) -> Case:
    """One field of a request that is fine otherwise; `value` as JSON."""
    rest = '"prompt": "a"' if path == COMPLETIONS else USER
    return posted(path, f'{{{rest}, "{field}": {value}}}')
