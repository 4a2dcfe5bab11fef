"""Gives every response an `x-request-id`: the client's own if it is valid, else a new one. Logs name it too."""

import re
import secrets
from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_SCOPE_KEY = "baton.request_id"
_REASONABLE = re.compile(rb"[\x21-\x7e]{1,128}\Z")


def new_request_id() -> str:
    """A new random id."""
    return f"req-{secrets.token_hex(12)}"


def request_id_of(request: Request) -> str:
    """The id that the response to `request` carries."""
    return str(request.scope.get(_SCOPE_KEY, ""))


class RequestIdMiddleware:
    """Wraps the application. `count` is called with the status of each response."""

    def __init__(self, app: ASGIApp, count: Callable[[int], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on and adds the header to its response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        given = next((value for name, value in scope["headers"] if name == HEADER.encode()), b"")
        request_id = given.decode("ascii") if _REASONABLE.match(given) else new_request_id()
        scope[_SCOPE_KEY] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(message["status"])
                own = (HEADER.encode(), request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), own]}  # a copy: that list may be shared
            await send(message)

        await self._app(scope, receive, send_with_id)
