"""Wraps the routes: uvicorn's protocol with bounds, and two middlewares that every request passes.

It bounds connections, headers (bytes, number, time), requests that wait on a connection, and clients that do not read:

    tokens -> backlog of the stream (a number of tokens) -> buffer of the connection (64 KiB) -> the kernel's -> client

The connection pauses the stream while its buffer is full. It is cut when the buffer stays full for too long, when the
end of a complete answer is not read for as long, or when the stream's backlog is full. Answers to HTTP/1.0, and those
that close a connection early, end in our own way: a client that still sends when its connection is closed gets a reset,
and may lose the answer. tests/gateway/http/test_protocol_uvicorn.py checks what is used here of uvicorn.
"""

import asyncio
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from traceback import extract_tb
from types import SimpleNamespace, TracebackType
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.http.errors import error_event, error_response, status_response
from gateway.http.parser import Parser, fault_of_head
from protocol.errors import InternalError, Unavailable
from runtime.log import get_log
from runtime.settings import HttpLimits

HEADER = "x-request-id"
OPEN_PATHS = ("/health", "/health/")
MAX_PIPELINED = 64  # requests that wait for the one before them on a connection: one read may bring ten thousand
FRAMING_BYTES = 64 * 1024  # chunk extensions and trailers between two pieces of a body
LINGER_S = 1.0  # for the client to read why it was refused: closing at once would reset the connection
SCOPE_KEY = "baton.slow_reader"
STALLED, BACKLOG = "stalled", "backlog"
Cut = Callable[[str], None]  # ends the connection for a reason
_EXCHANGE = "baton.exchange"
_REASONABLE = re.compile(rb"[\x21-\x7e]{1,128}\Z")
log = get_log("gateway.http")


class BoundedHttp(HttpToolsProtocol):
    """One connection. `count_cut` is told why a slow reader is cut, `count_refusal` the status of each refusal."""

    def __init__(self, limits: HttpLimits, count_cut: Cut, count_refusal: Callable[[int], None], **rest: Any) -> None:
        super().__init__(**rest)
        self.parser = Parser(self)  # type: ignore[assignment]
        self.limits, self._count_cut, self._count_refusal = limits, count_cut, count_refusal
        self._in_body = False  # else the client sends headers, also between two requests
        self._is_refused = False  # drops what still arrives
        self._stall: asyncio.TimerHandle | None = None  # the clock of a client that leaves something unread
        self._num_headers = 0
        self._num_bytes, self._tail = 0, b""  # of incomplete headers; in a body, since its last piece

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()
        if len(self.connections) > (most := self.limits.max_connections):
            self.connections.discard(self)  # it does not count while it reads the refusal
            self._refuse(503, f"there are {most} connections already, the most that are served at once")

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._unwatch_reader()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        end = -1 if self._in_body else (self._tail + data).find(b"\r\n\r\n")  # the end may come in two pieces
        self._tail = data[-3:]
        self._num_bytes += len(data) if end < 0 else end
        if self._num_bytes > self.limits.max_header_bytes and not self._in_body:
            self._refuse(431, f"the headers are longer than {self.limits.max_header_bytes} bytes")
            return

        super().data_received(data)

        most = self.limits.max_body_bytes if self._is_idle else FRAMING_BYTES  # idle: no route reads the body
        if self._num_bytes > most and self._in_body:
            self._refuse(431, f"there are more than {most} bytes between two pieces of the body or after it")
        if self._is_idle and self._deadline.cancelled() and not self._is_refused:
            self._arm()  # uvicorn has stopped its own clock, but no request has begun

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[SCOPE_KEY] = (self.limits.max_stream_backlog, self._cut_reader)  # type: ignore[literal-required]
        self._num_headers = 0
        if self._deadline.cancelled():
            self._arm()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        if self._num_headers <= self.limits.max_headers and not self._in_body:  # in a body, it is a trailer
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_refused:
            return
        self._deadline.cancel()
        self._num_bytes = 0
        if self._num_headers > self.limits.max_headers:
            self._refuse(431, f"there are {self._num_headers} headers, expected at most {self.limits.max_headers}")
        elif len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(431, f"there are more than {MAX_PIPELINED} requests before this one")  # never sent
        elif fault := fault_of_head(self.parser.get_http_version(), self.parser.get_method(), self.headers):
            self._refuse(*fault)
        else:
            super().on_headers_complete()
            adapt(self.cycle, self._hang_up)
            self._in_body = True

    def on_body(self, body: bytes) -> None:
        if not self._is_refused and not self._is_idle:
            self._num_bytes = 0
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._deadline.cancel()
        if not self._is_refused:
            super().on_message_complete()
            self.cycle.transport = self.transport
            self._in_body, self._num_bytes, self._tail = False, 0, b""

    def send_400_response(self, msg: str) -> None:
        self._refuse(*cast(Parser, self.parser).fault)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unwatch_reader()
        if self._is_idle:  # the client must take the rest of a complete answer, too
            self._watch_reader()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._stall is None:  # a clock that runs goes on
            self._watch_reader()

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete  # no answer is owed

    def _arm(self) -> None:
        seconds = self.limits.body_timeout_s if self._in_body else self.limits.header_timeout_s
        self._deadline = self.loop.call_later(seconds, self._too_slow, seconds)

    def _too_slow(self, seconds: float) -> None:
        self._arm()  # an answer that is being sent must not end
        if self._is_idle:
            self._refuse(408, f"the headers did not arrive within {seconds:g} s")

    def _refuse(self, status: int, message: str) -> None:
        """Ends the connection. Sends the reason if the client waits for an answer to what it sends now."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused, is_owed = True, not self._is_idle
        self._deadline.cancel()
        if is_owed and not self._in_body:
            self.cycle.keep_alive = False  # the requests before this one are answered first
        elif is_owed and (self.cycle.response_started or self.pipeline):
            self.transport.close()
        else:
            if is_owed:  # the route that waits for the rest must not answer too
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if is_owed or not self._in_body:
                self._count_refusal(status)
                self.transport.write(raw_refusal(status, message))
            self._hang_up()

    def _hang_up(self) -> None:
        """Ends a connection whose client may still send. What it sends must be read and dropped."""
        self._is_refused = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.close)

    # ---- clients that do not read ----

    def _watch_reader(self) -> None:
        """Starts the clock anew if something is unread."""
        self._unwatch_reader()
        if self.transport.get_write_buffer_size():
            self._stall = self.loop.call_later(self.limits.slow_reader_timeout_s, self._stalled)

    def _unwatch_reader(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _stalled(self) -> None:
        self._stall = None
        if self.transport.get_write_buffer_size():
            self._cut_reader(STALLED)

    def _cut_reader(self, reason: str) -> None:
        """Ends the connection at once. What was not read is dropped."""
        self._unwatch_reader()
        num_unread = self.transport.get_write_buffer_size()
        if num_unread or not self.transport.is_closing():
            self._count_cut(reason)
            log.warning("slow reader cut", reason=reason, unread_bytes=num_unread)
            self.transport.abort()


class UnframedCycle(RequestResponseCycle):
    """An answer to HTTP/1.0, which knows no chunks: it ends with the connection."""

    async def send(self, message: ASGISendEvent) -> None:
        """Writes each part as it is. uvicorn ends such a connection after the answer."""
        self.chunked_encoding = False
        if message["type"] == "http.response.body":
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def adapt(cycle: RequestResponseCycle, hang_up: Callable[[], None]) -> None:
    """Makes an answer that ends its connection call `hang_up`, until its request is complete."""
    if cycle.scope["http_version"] == "1.0":
        cycle.__class__ = UnframedCycle
        cycle.waiting_for_100_continue = False  # HTTP/1.0 knows no such answer
    transport = SimpleNamespace(write=cycle.transport.write, is_closing=cycle.transport.is_closing, close=hang_up)
    cycle.transport = transport  # type: ignore[assignment]


def raw_refusal(status: int, message: str) -> bytes:
    """A whole error response, for a request that reaches no application. The log has its id."""
    request_id = new_request_id()
    log.debug("connection refused", x_request_id=request_id, status=status)
    response = status_response(status, message, {HEADER: request_id, "connection": "close"})
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    return head + b"".join(b"%s: %s\r\n" % header for header in response.raw_headers) + b"\r\n" + bytes(response.body)


def backlog_of(scope: Scope) -> tuple[int, Cut] | None:
    """(tokens that may wait for the client of this request, how to cut its connection). None if the server is not a
    gateway, as in a test."""
    return scope.get(SCOPE_KEY)


# ---- every request ----


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
    exchange: Exchange | None = scope.get(_EXCHANGE)
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
        scope[_EXCHANGE] = exchange

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(message["status"])
                own = (HEADER.encode(), exchange.request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), own]}  # a copy: that list may be shared
                exchange.start = message
            await send(message)

        await self._app(scope, receive, send_with_id)


class Gate:
    """What a request passes before its route.

    - A body that is announced as too long is refused (413) before it is read.
    - With `keys`, only clients that send one of them are served: `Authorization: Bearer KEY`. `/health` needs none.
    - HEAD becomes GET, and the slash at a path's end is dropped. The server still sees HEAD and leaves out the body.
    - A fault of the gateway itself fails its request alone, with one log line, and `count_fault` is called.
    """

    def __init__(self, app: ASGIApp, limits: HttpLimits, keys: Sequence[str], count_fault: Callable[[], None]) -> None:
        self._app, self._limits, self._count_fault = app, limits, count_fault
        self._digests = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the changed request on, or answers it."""
        num_bytes = _announced_bytes(scope)
        if num_bytes > self._limits.max_body_bytes:
            most = self._limits.max_body_bytes
            error = body_refused(scope, 413, f"the body has {num_bytes} bytes, expected at most {most} bytes")
            await status_response(error.status_code, error.detail, error.headers)(scope, receive, send)
        elif self._digests and scope["path"] not in OPEN_PATHS and not self._is_known(token_of(scope)):
            message = "the API key is missing or wrong; expected the header `Authorization: Bearer KEY`"
            await status_response(401, message, {"www-authenticate": "Bearer"})(scope, receive, send)
        else:
            await self._guarded(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """If the application raises, answers 500 or ends the stream with an error event."""
        exchange: Exchange = scope[_EXCHANGE]
        path, method = scope["path"].rstrip("/") or "/", scope["method"]
        plain = {**scope, "path": path, "method": "GET" if method == "HEAD" else method}  # the original is the server's
        try:
            await self._app(plain, receive, send)
        except asyncio.CancelledError:  # the gateway stops, and uvicorn's grace period is over
            if exchange.start is None:
                await error_response(Unavailable("the gateway is stopping"))(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the top of a request: fails it and goes on
            self._count_fault()
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

    def _is_known(self, token: bytes) -> bool:
        """Compares with every key, at constant time: timing tells nothing about the keys."""
        digest = sha256(token).digest()
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


def token_of(scope: Scope) -> bytes:
    """The text after `Bearer`; empty if the header is missing or given twice."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    return bytes(token.strip()) if scheme.lower() == b"bearer" else b""


def body_refused(scope: Scope, status: int, message: str) -> HTTPException:
    """The refusal of a body, written to the log. The connection ends after it."""
    log.debug("connection refused", x_request_id=request_id_of(scope), status=status)
    return HTTPException(status, message, {"connection": "close"})


def _announced_bytes(scope: Scope) -> int:
    """The length of the body as the headers announce it; 0 if the body comes in chunks."""
    headers = dict(scope["headers"])
    return 0 if b"transfer-encoding" in headers else int(headers.get(b"content-length", 0))


def _is_stream(start: Message) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in start["headers"])


def _place(traceback: TracebackType | None) -> str:
    """File and line that raised. The message is left out: it may quote the client."""
    frames = extract_tb(traceback)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
