"""Bounds on bodies, without a server: what a route reads, what it is spared, and what the client is told."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Scope

from gateway.http.protocol import Exchange, Gate
from gateway.serving.bodies import read_body
from runtime.settings import HttpLimits

LIMITS = HttpLimits(max_body_bytes=10, body_timeout_s=60)
CHUNKED = [(b"host", b"a"), (b"transfer-encoding", b"chunked")]


def part(content: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": content, "more_body": more}


class Client:
    """A client that sends its body in parts and then stops. Records the answer that it gets."""

    def __init__(self, *parts: Message | Callable[[], Message]) -> None:
        self.parts, self.num_asked, self.answer = list(parts), 0, list[Message]()
        self.taken: list[int] = []

    async def receive(self) -> Message:
        self.num_asked += 1
        if not self.parts:
            await asyncio.Event().wait()
        first = self.parts.pop(0)
        return first() if callable(first) else first

    async def send(self, message: Message) -> None:
        self.answer.append(message)


def scope_of(*headers: tuple[bytes, bytes]) -> Scope:
    return {"type": "http", "method": "POST", "path": "/", "headers": [(b"host", b"a"), *headers]}


async def read(client: Client, limits: HttpLimits = LIMITS, headers: list[tuple[bytes, bytes]] = CHUNKED) -> list[int]:
    """The lengths of the parts that were taken. They are counted, also before a refusal."""
    request = Request(scope_of(*headers), client.receive)
    client.taken = []
    raw = await read_body(request, limits, client.taken.append)
    assert len(raw) == sum(client.taken)
    return client.taken


async def refused(client: Client, limits: HttpLimits = LIMITS) -> HTTPException:
    """What the route meets while it reads."""
    with pytest.raises(HTTPException) as caught:
        await read(client, limits)
    assert caught.value.headers == {"connection": "close"}
    return caught.value


@pytest.mark.parametrize("length", [b"11", b"99999999999999"])
async def test_what_is_announced_too_long_is_never_asked_for(length: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "baton")
    client = Client()

    async def route(*_: Any) -> None:
        raise AssertionError("it is not called")

    scope: Scope = {**scope_of((b"content-length", length)), "baton.exchange": Exchange("mine")}
    await Gate(route, LIMITS, (), lambda: None)(scope, client.receive, client.send)
    assert client.num_asked == 0
    start, body = client.answer
    assert start["status"] == 413 and (b"connection", b"close") in start["headers"]
    error = json.loads(body["body"])["error"]
    assert error["message"] == f"the body has {int(length)} bytes, expected at most 10 bytes"
    assert error["code"] == "request_too_large" and not body.get("more_body")
    [record] = caplog.records
    assert record.__dict__["baton_fields"] == {"x_request_id": "mine", "status": 413}


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"10")], CHUNKED])
async def test_any_other_body_is_the_routes_to_read(headers: list[tuple[bytes, bytes]]) -> None:
    client, given = Client(), list[Any]()

    async def route(*channels: Any) -> None:
        given.extend(channels[1:])

    scope: Scope = {**scope_of(*headers), "baton.exchange": Exchange("mine")}
    await Gate(route, LIMITS, (), lambda: None)(scope, client.receive, client.send)
    assert given == [client.receive, client.send] and client.answer == []


@pytest.mark.parametrize("headers", [CHUNKED, [(b"content-length", b"10")]])
async def test_a_body_as_long_as_the_bound_is_read(headers: list[tuple[bytes, bytes]]) -> None:
    client = Client(part(b"12345"), part(b""), part(b"67890"), part(b"", more=False))
    assert sum(await read(client, headers=headers)) == 10


async def test_the_part_that_is_too_much_is_not_taken() -> None:
    client = Client(part(b"12345"), part(b"678901"), part(b"never", more=False))
    error = await refused(client)
    assert error.status_code == 413 and error.detail == "the body is longer than that, expected at most 10 bytes"
    assert client.taken == [5] and client.num_asked == 2


async def test_a_body_without_end_is_not_waited_for() -> None:
    client = Client(part(b"1"), part(b"2"))
    error = await refused(client, HttpLimits(body_timeout_s=0.01))
    assert error.status_code == 408 and error.detail == "the body did not arrive within 0.01 s"
    assert client.taken == [1, 1]


async def test_what_has_come_is_taken_however_late_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three parts wait to be read; the clock is an hour ahead at each."""
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + ahead[0])

    def late(more: bool) -> Message:
        ahead[0] += 3600
        return part(b"x", more)

    client = Client(lambda: late(True), lambda: late(True), lambda: late(False))
    assert sum(await read(client)) == 3


async def test_after_the_body_nothing_is_bounded() -> None:
    """The route waits for the client to leave for as long as it answers."""
    client = Client(part(b"{}", more=False), {"type": "http.disconnect"})
    request = Request(scope_of(*CHUNKED), client.receive)
    await read_body(request, HttpLimits(body_timeout_s=0.01), lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "call_at", None)  # no clock may be started
        assert await request.receive() == {"type": "http.disconnect"}


async def test_a_client_that_leaves_in_the_middle_is_no_refusal() -> None:
    with pytest.raises(ClientDisconnect):
        await read(Client(part(b"1"), {"type": "http.disconnect"}))
