"""Two rules for every route: HEAD is answered like GET without a body, and a path may end with a slash."""

from starlette.types import ASGIApp, Receive, Scope, Send


class PlainRequests:
    """Wraps the application: turns HEAD into GET and drops the slash at a path's end. The server still sees HEAD and
    leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the changed request on."""
        if scope["type"] == "http":
            path = scope["path"].rstrip("/") or "/"
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            scope = {**scope, "path": path, "method": method}  # a copy: the original belongs to the server
        await self._app(scope, receive, send)
