"""The top of every request: a fault of the gateway's own fails that request, in one line of the log, and nothing else.
So does the end of the gateway, which waits for nobody.

What it does not know: which request, what the fault is.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http_errors import error_object, error_response
from gateway.request_id import request_id_of
from gateway.sse import event
from protocol.errors import InternalError, Unavailable
from runtime.log import get_log

log = get_log("gateway.http")


class FaultGuard:
    """Wraps the application, inside RequestIdMiddleware. `count` is told of each fault."""

    def __init__(self, app: ASGIApp, count: Callable[[], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on; answers 500, or ends a stream with an error event, when the application raises."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: list[Message] = []

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.append(message)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:  # the time that uvicorn gives requests when the gateway stops is over
            if not start:
                await error_response(Unavailable("the gateway is stopping"))(scope, _nothing, send)
        except Exception as error:  # noqa: BLE001 - the top of a request: fails it and goes on
            self._count()
            request_id, kind = request_id_of(Request(scope)), type(error).__name__
            log.error(
                "request failed by a fault of the gateway",
                x_request_id=request_id,
                kind=kind,
                at=_place(error.__traceback__),
            )
            await _answer(InternalError("the gateway failed on this request; its log says why"), start, scope, send)


async def _answer(error: InternalError, start: list[Message], scope: Scope, send: Send) -> None:
    """What still can be said. A whole answer that has begun cannot be mended: its connection is closed by uvicorn."""
    if not start:
        await error_response(error)(scope, _nothing, send)
    elif _is_stream(start[0]):
        await send({"type": "http.response.body", "body": event(error_object(error)), "more_body": False})


def _is_stream(start: Message) -> bool:
    headers: Any = start.get("headers", [])
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _place(traceback: TracebackType | None) -> str:
    """File and line that raised; not the message, which may quote the client."""
    frames = extract_tb(traceback)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
