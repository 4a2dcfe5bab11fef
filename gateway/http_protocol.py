"""HTTP/1.1 as uvicorn parses it, with bounds on what a connection may send: bytes, headers, time; and on connections.

Without them the parser takes two million headers and bodies without end, or waits for ever for the next byte. Whoever
breaks a bound is told which one, in the shape of every other error, and the connection ends. What it does not know:
routes, what bodies mean.
"""

import asyncio
from enum import StrEnum
from typing import Any

import orjson
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.http_errors import RETRY_AFTER_S, status_object
from gateway.request_id import HEADER, new_request_id
from runtime.log import get_log
from runtime.settings import HttpLimits

LINGER_S = 1.0  # for the client to read why it was refused: closing at once would reset the connection
MAX_PIPELINED = 64  # requests that wait for the one before them on a connection: one read may bring ten thousand
FRAMING_BYTES = 64 * 1024  # chunk extensions and trailers between two pieces of a body
log = get_log("gateway.http")
REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Phase(StrEnum):
    """What the client sends now. Between two requests it is HEADERS: those of the next one."""

    HEADERS = "headers"
    BODY = "body"


class UnframedCycle(RequestResponseCycle):
    """An answer to HTTP/1.0, which knows no chunks: it ends with the connection."""

    async def send(self, message: ASGISendEvent) -> None:
        """Writes each part as it is. uvicorn ends such a connection after the answer."""
        self.chunked_encoding = False
        if message["type"] == "http.response.body":
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class BoundedHttp(HttpToolsProtocol):
    """One connection. `limits` is a class attribute: slow_reader.py makes a class with the wanted ones."""

    limits = HttpLimits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = Phase.HEADERS
        self._header_bytes = 0
        self._tail = b""  # the last bytes that were counted
        self._num_headers = 0
        self._body_bytes = 0
        self._framing_bytes = 0  # since the last piece of the body
        self._is_refused = False
        self._deadline: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None

    # ---- the connection ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """One connection too many is told so; any other client must send its first headers in time."""
        super().connection_made(transport)
        most = self.limits.max_connections
        if len(self.connections) > most:
            self.connections.discard(self)  # while it reads why, it takes nobody's place
            self._refuse(503, f"there are {most} connections already, the most that are served at once", "overloaded")
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is waited for."""
        self._disarm()
        self._unset_keepalive_if_required()
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts before it parses; what comes after a refusal is dropped."""
        if self._is_refused:
            return
        if self._phase is Phase.HEADERS:
            seen = (self._tail + data).find(b"\r\n\r\n")  # the end of the headers may come in two pieces
            self._tail = data[-3:]
            self._header_bytes += len(data) if seen < 0 else seen
            if self._header_bytes > self.limits.max_header_bytes:
                self._refuse(431, f"the headers are longer than {self.limits.max_header_bytes} bytes")
                return
        else:
            self._framing_bytes += len(data)
        super().data_received(data)
        if self._phase is Phase.BODY and self._framing_bytes > FRAMING_BYTES:
            self._refuse(431, f"there are more than {FRAMING_BYTES} bytes between two pieces of the body or after it")
        if self._deadline is None and not self._is_refused and self._phase is Phase.HEADERS and self._is_idle:
            self._arm()  # what came was no request, such as empty lines, and uvicorn has stopped its own clock

    # ---- what the parser finds ----

    def on_message_begin(self) -> None:
        """A request, or a further one on the same connection."""
        super().on_message_begin()
        self._num_headers = self._body_bytes = 0
        if self._deadline is None:
            self._arm()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keeps a bounded number of headers; trailers are nobody's business."""
        self._num_headers += 1
        if self._phase is Phase.HEADERS and self._num_headers <= self.limits.max_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The headers are in; the clock starts again for the body."""
        if self._is_refused:
            return
        self._disarm()
        self._header_bytes, self._tail = 0, b""
        if self._num_headers > self.limits.max_headers:
            self._refuse(431, f"there are {self._num_headers} headers, expected at most {self.limits.max_headers}")
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(431, f"there are more than {MAX_PIPELINED} requests before this one")  # it is not told so
            return
        declared = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        if declared > self.limits.max_body_bytes:
            self._refuse_body(f"has {declared} bytes")
            return
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0" and self.cycle is not None:
            self.cycle.__class__ = UnframedCycle
        self._phase = Phase.BODY
        self._framing_bytes = 0
        self._arm()

    def on_body(self, body: bytes) -> None:
        """Counts, and keeps nothing of a request that is refused."""
        if self._is_refused:
            return
        self._body_bytes += len(body)
        self._framing_bytes = 0
        if self._body_bytes > self.limits.max_body_bytes:
            self._refuse_body("is longer than that")
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole, unless it was refused."""
        self._disarm()
        if self._is_refused:
            return
        super().on_message_complete()
        self._phase = Phase.HEADERS

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed is answered in the shape of every other error."""
        self._refuse(400, "this is not valid HTTP/1.1" if msg.startswith("Invalid HTTP request") else msg)

    # ---- deadlines ----

    @property
    def _is_idle(self) -> bool:
        """Whether no response is owed."""
        return self.cycle is None or self.cycle.response_complete

    def _arm(self) -> None:
        limits = self.limits
        seconds = limits.header_timeout_s if self._phase is Phase.HEADERS else limits.body_timeout_s
        self._deadline = self.loop.call_later(seconds, self._too_slow, seconds)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self, seconds: float) -> None:
        self._deadline = None
        if self.flow.read_paused or (self._phase is Phase.HEADERS and not self._is_idle):
            self._arm()  # it is we who do not read, or an answer is under way that must not suffer
            return
        self._refuse(408, f"the {self._phase} did not arrive within {seconds:g} s")

    # ---- refusals ----

    def _refuse_body(self, how_long: str) -> None:
        self._refuse(413, f"the body {how_long}, expected at most {self.limits.max_body_bytes} bytes")

    def _refuse(self, status: int, message: str, code: str | None = None) -> None:
        """The end of this connection, with a reason where a response is still owed for what the client sends now."""
        if self._is_refused:
            return
        self._is_refused = True
        self._disarm()
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        if self._phase is Phase.HEADERS and not self._is_idle:
            self.cycle.keep_alive = False  # the requests before this one are answered, then the connection is closed
            return
        if self._phase is Phase.BODY and not self.cycle.response_complete:
            if self.cycle.response_started or self.pipeline:
                self.transport.close()
                return
            self.cycle.disconnected = True  # the route that waits for the rest must not answer too
            self.cycle.message_event.set()
        if self._phase is Phase.HEADERS or not self.cycle.response_complete:
            self._write(status, message, code)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._linger = self.loop.call_later(LINGER_S, self.transport.close)

    def _write(self, status: int, message: str, code: str | None) -> None:
        error = status_object(status, message, code)
        body = orjson.dumps(error)
        request_id = new_request_id()
        log.debug("connection refused", x_request_id=request_id, status=status)
        retry = f"retry-after: {RETRY_AFTER_S[status]}\r\n" if status in RETRY_AFTER_S else ""
        head = (
            f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n{HEADER}: {request_id}\r\n{retry}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
