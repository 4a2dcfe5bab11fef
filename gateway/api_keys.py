"""Serves only clients that send a key: `Authorization: Bearer KEY`."""

import hmac
from collections.abc import Sequence
from hashlib import sha256

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http_errors import status_response

OPEN_PATHS = ("/health", "/health/")


class ApiKeys:
    """Wraps the application. Every path but `/health` needs one of `keys`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on a request with a valid key or to an open path; answers 401 to any other."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_known(_token(scope)):
            await self._app(scope, receive, send)
            return
        message = "the API key is missing or wrong; expected the header `Authorization: Bearer KEY`"
        await status_response(401, message, {"www-authenticate": "Bearer"})(scope, receive, send)

    def _is_known(self, token: bytes) -> bool:
        """Compares with every key, at constant time: timing tells nothing about the keys."""
        digest = sha256(token).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _token(scope: Scope) -> bytes:
    """The text after `Bearer`; empty if the header is missing or given twice."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    return bytes(token.strip()) if scheme.lower() == b"bearer" else b""
