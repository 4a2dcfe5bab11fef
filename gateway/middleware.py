"""What wraps the routes of every request: its id, the bounds of its body, the API key, faults of the gateway, its path.

http_app.py puts the wrappers on, in this order from the outside.
"""

import asyncio
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http_errors import error_event, error_response, status_response
from protocol.errors import InternalError, Unavailable
from runtime.log import get_log
from runtime.settings import HttpLimits

HEADER = "x-request-id"
_SCOPE_KEY = "baton.exchange"
_REASONABLE = re.compile(rb"[\x21-\x7e]{1,128}\Z")
OPEN_PATHS = ("/health", "/health/")
CLOSE = {"connection": "close"}
log = get_log("gateway.http")


@dataclass
class Exchange:
    """A request and its response. All wrappers and routes share it: it is in the scope, which some of them copy."""

    request_id: str
    start: Message | None = None  # status and headers of the response, once it has begun


def new_request_id() -> str:
    """A new random id."""
    return f"req-{secrets.token_hex(12)}"


def request_id_of(scope: Scope) -> str:
    """The id that the response to a request carries."""
    exchange: Exchange | None = scope.get(_SCOPE_KEY)
    return "" if exchange is None else exchange.request_id


class RequestIdMiddleware:
    """Gives every response an `x-request-id`: the client's own if it is valid, else a new one. `count` is called with
    the status of each response."""

    def __init__(self, app: ASGIApp, count: Callable[[int], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on and adds the header to its response."""
        given = next((value for name, value in scope["headers"] if name == HEADER.encode()), b"")
        exchange = Exchange(given.decode("ascii") if _REASONABLE.match(given) else new_request_id())
        scope[_SCOPE_KEY] = exchange

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(message["status"])
                own = (HEADER.encode(), exchange.request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), own]}  # a copy: that list may be shared
                exchange.start = message
            await send(message)

        await self._app(scope, receive, send_with_id)


class PlainRequests:
    """Turns HEAD into GET and drops the slash at a path's end. The server still sees HEAD and leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the changed request on."""
        path = scope["path"].rstrip("/") or "/"
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._app({**scope, "path": path, "method": method}, receive, send)  # the original is the server's


class ApiKeys:
    """Serves only clients that send one of `keys`: `Authorization: Bearer KEY`. `/health` needs none."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on a request with a valid key or to an open path; answers 401 to any other."""
        if scope["path"] in OPEN_PATHS or self._is_known(_token(scope)):
            await self._app(scope, receive, send)
            return
        message = "the API key is missing or wrong; expected the header `Authorization: Bearer KEY`"
        await status_response(401, message, {"www-authenticate": "Bearer"})(scope, receive, send)

    def _is_known(self, token: bytes) -> bool:
        """Compares with every key, at constant time: timing tells nothing about the keys."""
        digest = sha256(token).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _token(scope: Scope) -> bytes:
    """The text after `Bearer`; empty if the header is missing or given twice."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    return bytes(token.strip()) if scheme.lower() == b"bearer" else b""


class BodyLimits:
    """Bounds bodies: `max_body_bytes` long, complete within `body_timeout_s`. Otherwise 413 or 408.

    A body whose Content-Length is too large is refused before it is read. Any other body is counted while the route
    reads it, and the part that breaks a bound is not passed on. The connection ends after a refusal. Outside of all
    middleware that may answer by itself.
    """

    def __init__(self, app: ASGIApp, limits: HttpLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on bodies that may be read. Answers 413 to those that are announced as too long."""
        num_bytes = _announced_bytes(scope)
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
        log.debug("connection refused", x_request_id=request_id_of(self._scope), status=status)
        return HTTPException(status, message, CLOSE)


def _announced_bytes(scope: Scope) -> int | None:
    """The length of the body as the headers announce it. None if the body comes in chunks."""
    headers = dict(scope["headers"])
    return None if b"transfer-encoding" in headers else int(headers.get(b"content-length", 0))


class FaultGuard:
    """A fault of the gateway itself fails its request alone, with one log line. `count` is called for each fault. Also
    answers requests that are cut off because the gateway stops."""

    def __init__(self, app: ASGIApp, count: Callable[[], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on. If the application raises, answers 500 or ends the stream with an error event."""
        exchange: Exchange = scope[_SCOPE_KEY]
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:  # the gateway stops, and uvicorn's grace period is over
            if exchange.start is None:
                await error_response(Unavailable("the gateway is stopping"))(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the top of a request: fails it and goes on
            self._count()
            log.error(
                "request failed by a fault of the gateway",
                x_request_id=exchange.request_id,
                kind=type(error).__name__,
                at=_place(error.__traceback__),
            )

            fault = InternalError("the gateway failed on this request; its log says why")
            if exchange.start is None:
                await error_response(fault)(scope, receive, send)
            elif _is_stream(exchange.start):  # if a whole answer has begun, uvicorn closes its connection
                await send({"type": "http.response.body", "body": error_event(fault), "more_body": False})


def _is_stream(start: Message) -> bool:
    headers: Any = start.get("headers", [])
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


def _place(traceback: TracebackType | None) -> str:
    """File and line that raised. The message is left out: it may quote the client."""
    frames = extract_tb(traceback)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
