"""The one place where errors become HTTP: status, body and headers of every error.

{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
"""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from protocol.errors import BadRequest, BatonError, Overloaded, Unavailable, UnknownModel

RETRY_AFTER_S = {429: "1", 503: "2"}
FAULTS = {  # by status: the type of any such error, and the code of a fault in HTTP itself
    400: ("invalid_request_error", "bad_request"),
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("not_found_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("timeout_error", "request_timeout"),
    413: ("invalid_request_error", "request_too_large"),
    415: ("invalid_request_error", "unsupported_media_type"),
    429: ("rate_limit_error", "overloaded"),
    431: ("invalid_request_error", "headers_too_large"),
    500: ("internal_error", "internal_error"),
    501: ("invalid_request_error", "not_implemented"),
    503: ("service_unavailable", "overloaded"),
    505: ("invalid_request_error", "http_version_not_supported"),
}


def status_of(error: BatonError) -> int:
    """The HTTP status of an error."""
    for kind, status in ((UnknownModel, 404), (BadRequest, 400), (Overloaded, 429), (Unavailable, 503)):
        if isinstance(error, kind):
            return status
    return 500


def error_object(error: BatonError) -> dict[str, Any]:
    """The body for one of Baton's own errors."""
    status = status_of(error)
    kind = "invalid_request_error" if status == 404 else FAULTS[status][0]
    return _object(error.message, kind, error.param, error.code)


def error_response(error: BatonError) -> Response:
    """The whole response for one of Baton's own errors."""
    return json_response(error_object(error), status_of(error))


def error_event(error: BatonError) -> bytes:
    """The last event of a stream that one of Baton's own errors ends. No DONE follows it."""
    return b"data: " + orjson.dumps(error_object(error)) + b"\n\n"


def status_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """The whole response for a fault in HTTP itself: an unknown path, a wrong method, a body that is too large."""
    kind, code = FAULTS[status]
    response = json_response(_object(message, kind, None, code), status)
    response.headers.update(headers or {})
    return response


def json_response(body: Any, status: int = 200) -> Response:
    """A JSON response. With 429 and 503, Retry-After tells when to try again."""
    headers = {"retry-after": RETRY_AFTER_S[status]} if status in RETRY_AFTER_S else None
    return Response(orjson.dumps(body), status, headers, "application/json")


def _object(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
