"""Mends how uvicorn ends two kinds of answers: those to HTTP/1.0, and those that close a connection early.

A client that still sends when its connection is closed gets a reset, and may lose the answer.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from types import SimpleNamespace

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.http_errors import status_response
from gateway.request_id import HEADER, new_request_id
from runtime.log import get_log

LINGER_S = 1.0  # for the client to read why it was refused: closing at once would reset the connection
log = get_log("gateway.http")


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
    transport = SimpleNamespace(write=cycle.transport.write, is_closing=cycle.transport.is_closing, close=hang_up)
    cycle.transport = transport  # type: ignore[assignment]


def hang_up(transport: asyncio.Transport, flow: FlowControl, loop: asyncio.AbstractEventLoop) -> None:
    """Ends a connection whose client may still send. What it sends must be read and dropped."""
    if transport.can_write_eof():
        transport.write_eof()
    flow.resume_reading()
    loop.call_later(LINGER_S, transport.close)


def raw_refusal(status: int, message: str) -> bytes:
    """A whole error response, for a request that reaches no application. The log has its id."""
    request_id = new_request_id()
    log.debug("connection refused", x_request_id=request_id, status=status)
    response = status_response(status, message, {HEADER: request_id, "connection": "close"})
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    return head + b"".join(b"%s: %s\r\n" % header for header in response.raw_headers) + b"\r\n" + bytes(response.body)
