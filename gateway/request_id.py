"""Every response carries `x-request-id`: the client's own when it is reasonable, else a new one.

What it does not know: routes.
"""

import re
import secrets

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_REASONABLE = re.compile(rb"[\x21-\x7e]{1,128}\Z")


class RequestIdMiddleware:
    """Wraps the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on and adds the header."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == HEADER.encode()), b"")
        request_id = given.decode("ascii") if _REASONABLE.match(given) else f"req-{secrets.token_hex(12)}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(raw=message.setdefault("headers", []))[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
