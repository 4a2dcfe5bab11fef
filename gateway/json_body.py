"""Reads the JSON body of a request and parses it strictly.

Strict: UTF-8, no NaN, no lone surrogates, no key twice in an object, bounded depth, containers and strings.
"""

import re
from collections.abc import Callable
from typing import Any

import jiter
from starlette.exceptions import HTTPException
from starlette.requests import Request

from protocol.errors import BadRequest

MAX_DEPTH = 200  # jiter's own limit
MAX_CONTAINERS = 100_000  # "[" and "{" in a body, those inside strings too: each may become a Python object
MAX_STRINGS = 100_000  # pairs of quotes, without escaped ones
JSON_TYPE = "application/json"
_TWICE = re.compile(r'Detected duplicate key "(.*)" at line (\d+) column (\d+)', re.DOTALL)


def check_content(request: Request) -> None:
    """Raises 415 unless the headers name plain JSON. Missing headers count as plain JSON."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise HTTPException(415, f"content-encoding: got {encoding[:80]!r}, expected an uncompressed body")

    given = request.headers.get("content-type", JSON_TYPE)
    kind, _, rest = given.partition(";")
    kind = kind.strip().lower()
    if kind != JSON_TYPE and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HTTPException(415, f"content-type: got {given[:80]!r}, expected {JSON_TYPE!r}")

    charset = rest.partition("charset=")[2].strip(' "').lower()
    if charset not in ("", "utf-8", "utf8"):
        raise HTTPException(415, f"content-type: got charset {charset[:80]!r}, expected 'utf-8'")


async def read_body(request: Request, count: Callable[[int], None]) -> bytes:
    """The whole body. Calls `count` with the length of each part; `count` may raise."""
    parts: list[bytes] = []
    async for part in request.stream():
        count(len(part))
        parts.append(part)
    return b"".join(parts)


def parse_json(raw: bytes) -> Any:
    """The parsed body. BadRequest names the fault and its place. 1e999 parses as infinity; the field refuses it."""
    containers = raw.count(b"[") + raw.count(b"{")
    if containers > MAX_CONTAINERS:
        raise BadRequest(f"the body has {containers} opening brackets, expected at most {MAX_CONTAINERS}")

    strings = (raw.count(b'"') - raw.count(b'\\"')) // 2
    if strings > MAX_STRINGS:
        raise BadRequest(f"the body has {strings} strings, expected at most {MAX_STRINGS}")

    try:
        return jiter.from_json(raw, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        raise _bad_json(str(error)) from error


def _bad_json(message: str) -> BadRequest:
    twice = _TWICE.match(message)
    if twice is not None:
        key = twice[1] if len(twice[1]) <= 80 else twice[1][:77] + "..."
        return BadRequest(
            f"{key}: appears twice in one object, at line {twice[2]} column {twice[3]}, expected once", param=key
        )
    if message.startswith("recursion limit exceeded"):
        return BadRequest(f"the body is nested deeper than {MAX_DEPTH} levels")
    return BadRequest(f"the body is not valid JSON: {message[:200]}")
