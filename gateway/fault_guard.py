"""Wraps every request: a fault of the gateway itself fails that request alone, with one log line.

Also answers requests that are cut off because the gateway stops.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.answer_body import event
from gateway.http_errors import error_object, error_response
from gateway.request_id import request_id_of
from protocol.errors import InternalError, Unavailable
from runtime.log import get_log

log = get_log("gateway.http")


class FaultGuard:
    """Wraps the application, inside RequestIdMiddleware. `count` is called for each fault."""

    def __init__(self, app: ASGIApp, count: Callable[[], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on. If the application raises, answers 500 or ends the stream with an error event."""
        start: list[Message] = []

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.append(message)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:  # the gateway stops, and uvicorn's grace period is over
            if not start:
                await error_response(Unavailable("the gateway is stopping"))(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the top of a request: fails it and goes on
            self._count()
            request_id, kind = request_id_of(Request(scope)), type(error).__name__
            log.error(
                "request failed by a fault of the gateway",
                x_request_id=request_id,
                kind=kind,
                at=_place(error.__traceback__),
            )
            await _answer(
                InternalError("the gateway failed on this request; its log says why"), start, scope, receive, send
            )


async def _answer(error: InternalError, start: list[Message], scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the error as far as it still can. If a whole answer has begun, uvicorn closes its connection."""
    if not start:
        await error_response(error)(scope, receive, send)
    elif _is_stream(start[0]):
        await send({"type": "http.response.body", "body": event(error_object(error)), "more_body": False})


def _is_stream(start: Message) -> bool:
    headers: Any = start.get("headers", [])
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


def _place(traceback: TracebackType | None) -> str:
    """File and line that raised. The message is left out: it may quote the client."""
    frames = extract_tb(traceback)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
