"""Every response has its own id, however many there are at a time."""

from typing import Any

from starlette.types import Message, Receive, Scope, Send

from gateway.http.protocol import RequestIdMiddleware
from gateway.serving.answering import HEADERS


async def test_responses_that_share_a_list_of_headers_do_not_share_an_id() -> None:
    """The server may look at the headers late: only once the client has read what came before."""
    shared = list(HEADERS)

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": shared})

    starts: list[Message] = []

    async def keep(message: Message) -> None:
        starts.append(message)

    counted: list[int] = []
    wrapped: Any = RequestIdMiddleware(app, counted.append)
    for name in (b"one", b"two"):
        await wrapped({"type": "http", "headers": [(b"x-request-id", name)]}, None, keep)
    found = [[value for name, value in start["headers"] if name == b"x-request-id"] for start in starts]
    assert found == [[b"one"], [b"two"]]
    assert shared == list(HEADERS) and counted == [200, 200]
