"""One bad request, and what it must be told; written for the bundled model, whose context is 2,048 tokens of 1,024."""

import json
from dataclasses import dataclass
from typing import Any

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
ANY = "*"  # a param that is not looked at
USER = '"messages": [{"role": "user", "content": "a"}]'


@dataclass(frozen=True)
class Case:
    """`parts` are sent one after the other, then it is read until the server closes."""

    name: str
    parts: tuple[bytes, ...]
    status: int
    words: tuple[str, ...] = ()  # all of them are in the message
    param: str | None = ANY


def post(path: str, body: bytes, *headers: str, kind: str | None = "application/json") -> tuple[bytes, ...]:
    """A whole request that ends its connection."""
    lines = [f"POST {path} HTTP/1.1", "host: a", "connection: close", f"content-length: {len(body)}", *headers]
    if kind is not None:
        lines.append(f"content-type: {kind}")
    return ("\r\n".join([*lines, "", ""]).encode("latin-1"), body)


def refused(path: str, body: str | bytes, param: str | None, *words: str, status: int = 400) -> Case:
    """JSON that is told why not."""
    raw = body if isinstance(body, bytes) else body.encode()
    return Case(f"{path} {raw[:70]!r}", post(path, raw), status, words, param)


def served(path: str, **fields: Any) -> Case:
    """Odd, and fine."""
    return Case(f"{path} {str(fields)[:70]}", post(path, json.dumps({"max_tokens": 1, **fields}).encode()), 200)


def with_field(path: str, field: str, value: str, *words: str) -> Case:
    """One field of a request that is fine otherwise; `value` as JSON."""
    rest = '"prompt": "a"' if path == COMPLETIONS else USER
    return refused(path, f'{{{rest}, "{field}": {value}}}', field, *words)
