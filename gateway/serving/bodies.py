"""Reads the body of a request: plain JSON by its headers, bounded in length and time."""

import asyncio
from codecs import BOM_UTF8
from collections.abc import Callable

from fastapi import Request
from starlette.exceptions import HTTPException

from gateway.http.protocol import body_refused
from runtime.settings import HttpLimits

JSON_TYPE = "application/json"


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


async def read_body(request: Request, limits: HttpLimits, count: Callable[[int], None]) -> bytes:
    """The whole body, without a byte order mark. Calls `count` with the length of each part; `count` may raise.
    HTTPException 413 if it is too long, 408 if it does not arrive in time. The connection ends after either."""
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes > limits.max_body_bytes:
                    message = f"the body is longer than that, expected at most {limits.max_body_bytes} bytes"
                    raise body_refused(request.scope, 413, message)
                count(len(part))
                parts.append(part)
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_timeout_s:g} s"
        raise body_refused(request.scope, 408, message) from None
    return b"".join(parts).removeprefix(BOM_UTF8)  # some editors and clients write this mark before UTF-8
