"""Bounds the bodies of requests: `max_body_bytes` long, complete within `body_timeout_s`. Otherwise 413 or 408.

A body whose Content-Length is too large is refused before it is read. Any other body is counted while the route reads
it, and the part that breaks a bound is not passed on. The connection ends after a refusal.
"""

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http_errors import status_response
from gateway.request_id import request_id_of
from runtime.log import get_log
from runtime.settings import HttpLimits

CLOSE = {"connection": "close"}
log = get_log("gateway.http")


class BodyLimits:
    """Wraps the application, inside RequestIdMiddleware and outside of all middleware that may answer by itself."""

    def __init__(self, app: ASGIApp, limits: HttpLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on bodies that may be read. Answers 413 to those that are announced as too long."""
        num_bytes = announced_bytes(scope) if scope["type"] == "http" else 0
        if num_bytes == 0:
            await self._app(scope, receive, send)
            return

        body = BoundedBody(scope, receive, self._limits)
        if num_bytes is None or num_bytes <= self._limits.max_body_bytes:
            await self._app(scope, body.receive, send)
        else:
            error = body.too_long(f"has {num_bytes} bytes")
            await status_response(error.status_code, error.detail, CLOSE)(scope, receive, send)


class BoundedBody:
    """The body of one request. Its time runs only while the route waits for the client."""

    def __init__(self, scope: Scope, receive: Receive, limits: HttpLimits) -> None:
        self._scope = scope
        self._receive = receive
        self._limits = limits
        self._num_bytes = 0
        self._left_s = limits.body_timeout_s
        self._is_complete = False

    async def receive(self) -> Message:
        """The next part. HTTPException 408 or 413 when the body breaks a bound."""
        if self._is_complete:
            return await self._receive()

        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._left_s):
                message = await self._receive()
        except TimeoutError:
            raise self._refusal(408, f"the body did not arrive within {self._limits.body_timeout_s:g} s") from None
        self._left_s -= loop.time() - began

        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > self._limits.max_body_bytes:
            raise self.too_long("is longer than that")
        self._is_complete = not message.get("more_body", False)
        return message

    def too_long(self, how_long: str) -> HTTPException:
        """413, written to the log."""
        return self._refusal(413, f"the body {how_long}, expected at most {self._limits.max_body_bytes} bytes")

    def _refusal(self, status: int, message: str) -> HTTPException:
        log.debug("connection refused", x_request_id=request_id_of(Request(self._scope)), status=status)
        return HTTPException(status, message, CLOSE)


def announced_bytes(scope: Scope) -> int | None:
    """The length of the body as the headers announce it. None if the body comes in chunks."""
    headers = dict(scope["headers"])
    return None if b"transfer-encoding" in headers else int(headers.get(b"content-length", 0))
