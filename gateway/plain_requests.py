"""Two rules for every route: HEAD is answered like GET, without the body; a path may end with a slash.

What it does not know: which routes there are.
"""

from starlette.types import ASGIApp, Receive, Scope, Send


class PlainRequests:
    """Wraps the application, which sees GET for HEAD, and paths without a slash at their end. The server, which sees
    the request as it came, leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on."""
        if scope["type"] == "http":
            path = scope["path"].rstrip("/") or "/"
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            scope = {**scope, "path": path, "method": method}  # a copy: the original is the server's
        await self._app(scope, receive, send)
