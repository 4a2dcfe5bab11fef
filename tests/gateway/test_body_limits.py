"""Bounds on bodies, without a server: what a route reads, what it is spared, and what the client is told."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from gateway.middleware import BodyLimits, Exchange
from runtime.settings import HttpLimits

LIMITS = HttpLimits(max_body_bytes=10, body_timeout_s=60)
CHUNKED = [(b"host", b"a"), (b"transfer-encoding", b"chunked")]


def part(content: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": content, "more_body": more}


class Client:
    """A client that sends its body in parts and then stops. Records the answer that it gets."""

    def __init__(self, *parts: Message | Callable[[], Message]) -> None:
        self.parts, self.num_asked, self.answer = list(parts), 0, list[Message]()

    async def receive(self) -> Message:
        self.num_asked += 1
        if not self.parts:
            await asyncio.Event().wait()
        first = self.parts.pop(0)
        return first() if callable(first) else first

    async def send(self, message: Message) -> None:
        self.answer.append(message)


class Route:
    """Reads the whole body."""

    def __init__(self) -> None:
        self.is_called, self.parts, self.error = False, list[bytes](), None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.is_called = True
        async for each in Request(scope, receive).stream():
            self.parts.append(each)


def scope_of(*headers: tuple[bytes, bytes]) -> Scope:
    return {"type": "http", "method": "POST", "path": "/", "headers": [(b"host", b"a"), *headers]}


async def refused(client: Client, route: Any, scope: Scope | None = None) -> HTTPException:
    """What the route meets while it reads."""
    with pytest.raises(HTTPException) as caught:
        await BodyLimits(route, LIMITS)(scope or scope_of(*CHUNKED), client.receive, client.send)
    assert caught.value.headers == {"connection": "close"}
    return caught.value


@pytest.mark.parametrize("length", [b"11", b"99999999999999"])
async def test_what_is_announced_too_long_is_never_asked_for(length: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "baton")
    client, route = Client(), Route()
    scope: Scope = {**scope_of((b"content-length", length)), "baton.exchange": Exchange("mine")}
    await BodyLimits(route, LIMITS)(scope, client.receive, client.send)
    assert not route.is_called and client.num_asked == 0
    start, body = client.answer
    assert start["status"] == 413 and (b"connection", b"close") in start["headers"]
    error = json.loads(body["body"])["error"]
    assert error["message"] == f"the body has {int(length)} bytes, expected at most 10 bytes"
    assert error["code"] == "request_too_large" and not body.get("more_body")
    [record] = caplog.records
    assert record.__dict__["baton_fields"] == {"x_request_id": "mine", "status": 413}


@pytest.mark.parametrize("headers", [CHUNKED, [(b"content-length", b"10")]])
async def test_a_body_as_long_as_the_bound_is_read(headers: list[tuple[bytes, bytes]]) -> None:
    client, route = Client(part(b"12345"), part(b""), part(b"67890"), part(b"", more=False)), Route()
    await BodyLimits(route, LIMITS)(scope_of(*headers), client.receive, client.send)
    assert b"".join(route.parts) == b"1234567890" and client.answer == []


async def test_the_part_that_is_too_much_is_not_passed_on() -> None:
    client, route = Client(part(b"12345"), part(b"678901"), part(b"never", more=False)), Route()
    error = await refused(client, route)
    assert error.status_code == 413 and error.detail == "the body is longer than that, expected at most 10 bytes"
    assert route.parts == [b"12345"] and client.num_asked == 2


async def test_a_body_without_end_is_not_waited_for() -> None:
    limits = HttpLimits(body_timeout_s=0.01)
    client, route = Client(part(b"1"), part(b"2")), Route()
    with pytest.raises(HTTPException) as caught:
        await BodyLimits(route, limits)(scope_of(*CHUNKED), client.receive, client.send)
    assert caught.value.status_code == 408 and caught.value.detail == "the body did not arrive within 0.01 s"
    assert route.parts == [b"1", b"2"]


async def test_only_the_time_of_the_client_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 25 s each, and a route that takes an hour between two of them."""
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + ahead[0])

    def slow() -> Message:
        ahead[0] += 25
        return part(b"x")

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            seen.append(await receive())
            ahead[0] += 3600

    seen = list[Message]()
    client = Client(slow, slow, slow)
    assert (await refused(client, route)).status_code == 408
    assert len(seen) == 3, "what has come is taken, however late the route asks"


async def test_after_the_body_nothing_is_bounded() -> None:
    """The route waits for the client to leave for as long as it answers."""
    client = Client(part(b"{}", more=False), {"type": "http.disconnect"})
    seen = list[Message]()

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        loop = asyncio.get_running_loop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "call_at", None)  # no clock may be started
            seen.append(await receive())

    await BodyLimits(route, HttpLimits(body_timeout_s=0.01))(scope_of(*CHUNKED), client.receive, client.send)
    assert seen == [{"type": "http.disconnect"}]


async def test_a_client_that_leaves_in_the_middle_is_no_refusal() -> None:
    client, route = Client(part(b"1"), {"type": "http.disconnect"}), Route()
    with pytest.raises(ClientDisconnect):
        await BodyLimits(route, LIMITS)(scope_of(*CHUNKED), client.receive, client.send)


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"0")]])
async def test_a_request_without_a_body_passes_as_it_is(headers: list[tuple[bytes, bytes]]) -> None:
    client, given = Client(), list[Any]()

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        given.extend([receive, send])

    await BodyLimits(route, LIMITS)(scope_of(*headers), client.receive, client.send)
    assert given == [client.receive, client.send]
