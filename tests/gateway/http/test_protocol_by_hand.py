"""One connection without a socket, at each moment and in each state of its buffer."""

import asyncio
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.http.protocol import FRAMING_BYTES, LINGER_S, BoundedHttp
from runtime.settings import HttpLimits
from tests.gateway.connection_by_hand import Loop, Timer, Transport

LIMITS = HttpLimits(max_body_bytes=100, header_timeout_s=20, body_timeout_s=60, slow_reader_timeout_s=7)
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: a\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
ENDLESS = b"1;" + b"x" * (FRAMING_BYTES + 1)  # the extension of a chunk


class Bench:
    """A connection to a gateway, and what became of it."""

    def __init__(self) -> None:
        self.loop, self.transport, self.cut_for = Loop(), Transport(), list[str]()
        self.refused = list[int]()
        config = uvicorn.Config(_route, log_config=None, timeout_keep_alive=75)
        uvicorns = {"config": config, "server_state": ServerState(), "app_state": {}, "_loop": self.loop}
        self.http = BoundedHttp(LIMITS, self.cut_for.append, self.refused.append, **uvicorns)
        self.http.connection_made(cast(asyncio.Transport, self.transport))

    def answered(self) -> None:
        """The answer to the last request is complete, as far as its route is concerned."""
        self.http.cycle.response_complete = True
        self.http.on_response_complete()

    @property
    def watches(self) -> list[Timer]:
        """Timers of a client that does not read."""
        return self.loop.due(LIMITS.slow_reader_timeout_s)


async def _route(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no route runs")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_is_left_of_an_answer_is_watched_anew_when_the_client_has_read_some(bench: Bench) -> None:
    bench.http.data_received(GET)
    bench.transport.num_unread = 100_000
    bench.http.pause_writing()
    [before] = bench.watches
    bench.answered()
    assert bench.watches == [before], (
        "the clock of a client that reads nothing is not set back by the end of its answer"
    )
    bench.transport.num_unread = 10_000
    bench.http.resume_writing()
    [after] = bench.watches
    assert after is not before
    bench.loop.fire(LIMITS.slow_reader_timeout_s)
    assert bench.cut_for == ["stalled"] and bench.transport.is_aborted


def test_nobody_is_watched_who_has_read_all_or_whose_answer_goes_on(bench: Bench) -> None:
    bench.http.data_received(GET)
    bench.transport.num_unread = 100_000
    bench.http.pause_writing()
    bench.transport.num_unread = 10_000
    bench.http.resume_writing()
    assert bench.watches == [], "the route writes on, and the connection says when it is full again"
    bench.transport.num_unread = 0
    bench.answered()
    assert bench.watches == []


def test_the_rest_of_an_answer_that_never_filled_the_buffer_is_watched(bench: Bench) -> None:
    bench.http.data_received(GET)
    bench.transport.num_unread = 10
    bench.answered()
    assert len(bench.watches) == 1
    bench.transport.num_unread = 0  # the client has taken it: the connection says nothing of that
    bench.loop.fire(LIMITS.slow_reader_timeout_s)
    assert bench.cut_for == [] and not bench.transport.is_closed


def test_a_deadline_during_an_answer_is_set_again_and_comes_after_it(bench: Bench) -> None:
    bench.http.data_received(GET + b"GET / HT")
    bench.loop.fire(LIMITS.header_timeout_s)
    assert bench.transport.written == b"" and not bench.transport.is_closed
    bench.http.cycle.response_complete = True
    bench.loop.fire(LIMITS.header_timeout_s)
    assert bench.transport.written.startswith(b"HTTP/1.1 408 ")


def test_a_refusal_does_not_overtake_the_answer_before_it(bench: Bench) -> None:
    """Else the client would take it for the answer to its first request."""
    bench.http.data_received(GET + CHUNKED)
    assert len(bench.http.pipeline) == 1
    bench.http.data_received(ENDLESS)
    assert bench.transport.written == b"" and bench.transport.is_closed


def test_a_refusal_in_the_middle_of_its_own_answer_ends_the_connection(bench: Bench) -> None:
    bench.http.data_received(CHUNKED)
    bench.http.cycle.response_started = True
    bench.http.data_received(ENDLESS)
    assert bench.transport.written == b"" and bench.transport.is_closed


# ---- a body that goes on after its answer ----


def has_hung_up(bench: Bench) -> bool:
    """Whether the client sees the end at once, and the connection is closed a moment later."""
    assert bench.transport.is_ended and not bench.transport.is_closed
    bench.loop.fire(LINGER_S)
    return bench.transport.is_closed


async def answer(bench: Bench, *headers: tuple[bytes, bytes]) -> None:
    """The route answers, whatever of the body has come."""
    length = (b"content-length", b"2")
    await bench.http.cycle.send({"type": "http.response.start", "status": 404, "headers": [length, *headers]})
    await bench.http.cycle.send({"type": "http.response.body", "body": b"{}"})


async def test_an_answer_that_ends_the_connection_early_can_be_read(bench: Bench) -> None:
    """To close a connection on which bytes have come unread resets it, and the client loses the answer."""
    bench.http.data_received(POST + b"content-length: 90\r\n\r\nhalf")
    await answer(bench, (b"connection", b"close"))
    said = bench.transport.written
    bench.http.data_received(b"x" * 86 + GET)
    assert has_hung_up(bench) and bench.transport.written == said and said.endswith(b"{}")


async def test_an_answer_after_the_whole_body_ends_the_connection_at_once(bench: Bench) -> None:
    bench.http.data_received(POST + b"content-length: 4\r\n\r\nbody")
    await answer(bench, (b"connection", b"close"))
    assert bench.transport.is_closed and not bench.transport.is_ended


async def test_the_rest_of_a_body_that_was_answered_is_read_as_far_as_a_body_may_go(bench: Bench) -> None:
    for end, is_kept in ((b"0\r\n\r\n" + GET, True), (b"32\r\n" + b"x" * 0x32 + b"\r\n", False)):
        bench = Bench()
        bench.http.data_received(CHUNKED)
        await answer(bench)
        said = bench.transport.written
        bench.http.data_received(b"32\r\n" + b"x" * 0x32 + b"\r\n")
        bench.http.data_received(end)
        assert bench.transport.written == said and not bench.refused
        assert (not bench.transport.is_ended) if is_kept else has_hung_up(bench)
        assert bench.http._is_idle == (not is_kept), "the next request has begun, or none will"


async def test_the_rest_of_a_body_that_was_answered_must_come_in_time(bench: Bench) -> None:
    bench.http.data_received(CHUNKED)
    await answer(bench)
    said = bench.transport.written
    for _ in range(3):
        bench.http.data_received(b"1\r\nx\r\n")
    bench.loop.fire(LIMITS.body_timeout_s)
    assert has_hung_up(bench) and bench.transport.written == said and not bench.refused
