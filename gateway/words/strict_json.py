"""Strict JSON: UTF-8, no NaN, no lone surrogates, no key twice in an object; bounded depth, containers and strings."""

import re
from typing import Any

import jiter

from protocol.errors import BadRequest

MAX_DEPTH = 200  # jiter's own limit
MAX_CONTAINERS = 100_000  # "[" and "{" in a body, those inside strings too: each may become a Python object
MAX_STRINGS = 100_000  # pairs of quotes, without escaped ones
_TWICE = re.compile(r'Detected duplicate key "(.*)" at line (\d+) column (\d+)', re.DOTALL)


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
