"""HTTP/1.1 as uvicorn parses it, with bounds: so many header bytes, so many headers, so much time to send them.

Without them the parser takes two million headers, or waits for ever for the next one. What it does not know: routes and
bodies (http_app.py bounds those).
"""

import asyncio
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.http_errors import status_object
from gateway.request_id import HEADER, new_request_id
from runtime.log import get_log

MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 256
HEADER_DEADLINE_S = 20.0
log = get_log("gateway.http")
REASONS = {431: "Request Header Fields Too Large", 408: "Request Timeout"}


class BoundedHttp(HttpToolsProtocol):
    """One connection. `header_deadline_s` is a class attribute so that a test may shorten it in a subclass."""

    header_deadline_s = HEADER_DEADLINE_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._tail = b""  # the last bytes that were counted
        self._num_headers = 0
        self._in_headers = True
        self._is_refused = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client must send its first headers in time."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is waited for."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts what belongs to headers before it is parsed; nothing is read after a refusal."""
        if self._is_refused:
            return
        if self._in_headers:
            seen = (self._tail + data).find(b"\r\n\r\n")  # the end of the headers may come in two pieces
            self._tail = data[-3:]
            self._header_bytes += len(data) if seen < 0 else seen
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(431, f"the headers are longer than {MAX_HEADER_BYTES} bytes")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A further request on the same connection."""
        super().on_message_begin()
        self._in_headers = True
        self._num_headers = 0
        if self._deadline is None:
            self._arm()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Refuses one header too many."""
        self._num_headers += 1
        if self._num_headers <= MAX_HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The headers are in: the clock stops."""
        self._disarm()
        self._in_headers = False
        self._header_bytes, self._tail = 0, b""
        if self._num_headers > MAX_HEADERS:
            self._refuse(431, f"there are {self._num_headers} headers, expected at most {MAX_HEADERS}")
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Nothing of a refused request is kept."""
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """See on_body."""
        if not self._is_refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed is answered in the shape of every other error."""
        if not self._is_refused:
            self._refuse(400, msg)

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self.header_deadline_s, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        self._refuse(408, f"the headers did not arrive within {self.header_deadline_s:g} s")

    def _refuse(self, status: int, message: str) -> None:
        self._is_refused = True
        self._disarm()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:  # else another response is being written
            body = orjson.dumps(status_object(status, message))
            reason = REASONS.get(status, "Bad Request")
            request_id = new_request_id()
            log.debug("connection refused", request=request_id, status=status)
            head = (
                f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n{HEADER}: {request_id}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode("ascii") + body)
        self.transport.close()
