"""Only clients with a key are served: `Authorization: Bearer KEY`.

What it does not know: where keys are kept (runtime/api_keys.py).
"""

import hmac
from collections.abc import Sequence
from hashlib import sha256

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http_errors import json_response, status_object

OPEN_PATHS = ("/health", "/health/")


class ApiKeys:
    """Wraps the application. Every path but `/health` needs one of `keys`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what may pass, and answers 401 to the rest."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_known(_token(scope)):
            await self._app(scope, receive, send)
            return
        message = "the API key is missing or wrong; expected the header `Authorization: Bearer KEY`"
        response = json_response(status_object(401, message), 401)
        response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _is_known(self, token: bytes) -> bool:
        """Takes as long for a wrong key as for a right one, whichever it is: digests have one length, and each is
        compared."""
        digest = sha256(token).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _token(scope: Scope) -> bytes:
    """What follows `Bearer`; nothing where there is no such header, or two of them."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    return bytes(token.strip()) if scheme.lower() == b"bearer" else b""
