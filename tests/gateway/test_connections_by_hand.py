"""One connection without a socket: a transport and a loop that a test holds in its hand, so that each timer and each
state of the buffer can be had at will."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.slow_reader import WatchedHttp, watched_http
from runtime.settings import HttpLimits

LIMITS = HttpLimits(max_body_bytes=100, header_timeout_s=20, body_timeout_s=60, slow_reader_timeout_s=7)
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Timer:
    """What call_later gives."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self.seconds, self.act, self.is_due = seconds, act, True

    def cancel(self) -> None:
        self.is_due = False


class Loop:
    """Keeps timers until a test fires them; routes never run."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, seconds: float, act: Callable[..., None], *with_: Any) -> Timer:
        self.timers.append(Timer(seconds, lambda: act(*with_)))
        return self.timers[-1]

    def create_task(self, route: Coroutine[Any, Any, None], context: Any = None) -> "asyncio.Future[None]":
        route.close()
        return cast("asyncio.Future[None]", Done())

    def due(self, seconds: float) -> list[Timer]:
        """Timers of this length that run."""
        return [timer for timer in self.timers if timer.is_due and timer.seconds == seconds]

    def fire(self, seconds: float) -> None:
        """The one timer of this length has come."""
        [timer] = self.due(seconds)
        timer.is_due = False
        timer.act()


class Done:
    """A task that nobody waits for."""

    def add_done_callback(self, act: Callable[..., None]) -> None:
        """It never ends."""


class Transport:
    """`num_unread` bytes wait for the client."""

    def __init__(self) -> None:
        self.written, self.num_unread, self.is_closed, self.is_aborted = b"", 0, False, False

    def write(self, content: bytes) -> None:
        self.written += content

    def get_write_buffer_size(self) -> int:
        return self.num_unread

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def get_extra_info(self, name: str) -> None:
        return None

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    def resume_reading(self) -> None:
        """Nothing comes by itself."""


class Bench:
    """A connection to a gateway, and what became of it."""

    def __init__(self) -> None:
        self.loop, self.transport, self.cut_for = Loop(), Transport(), list[str]()
        made = watched_http(LIMITS, self.cut_for.append, lambda status: None)
        config = uvicorn.Config(_route, log_config=None, timeout_keep_alive=75)
        self.http: WatchedHttp = made(config=config, server_state=ServerState(), app_state={}, _loop=self.loop)
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


def test_a_deadline_while_nothing_is_read_from_the_client_is_set_again(bench: Bench) -> None:
    bench.http.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 90\r\n\r\nhalf")
    bench.http.flow.pause_reading()
    bench.loop.fire(LIMITS.body_timeout_s)
    assert bench.transport.written == b"" and not bench.transport.is_closed
    bench.http.flow.resume_reading()
    bench.loop.fire(LIMITS.body_timeout_s)
    assert bench.transport.written.startswith(b"HTTP/1.1 408 ")


def test_a_refusal_does_not_overtake_the_answer_before_it(bench: Bench) -> None:
    """Else the client would take it for the answer to its first request."""
    bench.http.data_received(GET + b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    assert len(bench.http.pipeline) == 1
    bench.http.data_received(b"65\r\n" + b"x" * 0x65)
    assert bench.transport.written == b"" and bench.transport.is_closed


def test_a_refusal_in_the_middle_of_its_own_answer_ends_the_connection(bench: Bench) -> None:
    bench.http.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    bench.http.cycle.response_started = True
    bench.http.data_received(b"65\r\n" + b"x" * 0x65)
    assert bench.transport.written == b"" and bench.transport.is_closed
