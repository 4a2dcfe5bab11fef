"""Connections whose client does not read: cut off after a while, so that what waits for them stays bounded.

    tokens -> backlog of the stream (so many tokens) -> buffer of the connection (64 KiB) -> the kernel's -> client

The connection pauses the stream while its buffer is full. It is cut when it stays full for too long, when an answer
that is complete is not taken for as long, or when the stream's backlog is full. What it does not know: what is written.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Scope

from gateway.http_protocol import BoundedHttp
from runtime.log import get_log
from runtime.settings import HttpLimits

log = get_log("gateway.http")
SCOPE_KEY = "baton.slow_reader"
STALLED, BACKLOG = "stalled", "backlog"
Cut = Callable[[str], None]  # ends the connection for a reason


class WatchedHttp(BoundedHttp):
    """One connection. `watched_http` makes a class whose `count` is told of each one that is cut, and whose
    `count_refusal` of the status of each refusal that no route has made."""

    count: Cut
    count_refusal: Callable[[int], None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stall: asyncio.TimerHandle | None = None

    def on_message_begin(self) -> None:
        """Lets the stream that answers cut the connection when its backlog is full."""
        super().on_message_begin()
        self.scope[SCOPE_KEY] = (self.limits.max_stream_backlog, self.cut)  # type: ignore[literal-required]

    def _write(self, status: int, message: str, code: str | None) -> None:
        super()._write(status, message, code)
        type(self).count_refusal(status)

    def pause_writing(self) -> None:
        """The client takes less than is written: the clock runs."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._unwatch()
        if self._is_idle:
            self._watch_rest()

    def on_response_complete(self) -> None:
        """What is left of an answer must be taken too."""
        super().on_response_complete()
        if self._stall is None:
            self._watch_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to be read."""
        self._unwatch()
        super().connection_lost(exc)

    def cut(self, reason: str) -> None:
        """Ends the connection at once; what was not read is dropped."""
        self._unwatch()
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            return
        type(self).count(reason)
        log.warning("slow reader cut", reason=reason, unread_bytes=self.transport.get_write_buffer_size())
        self.transport.abort()

    def _watch_rest(self) -> None:
        if self.transport.get_write_buffer_size():
            self._watch()

    def _watch(self) -> None:
        self._unwatch()
        self._stall = self.loop.call_later(self.limits.slow_reader_timeout_s, self._stalled)

    def _unwatch(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _stalled(self) -> None:
        self._stall = None
        if self.transport.get_write_buffer_size():
            self.cut(STALLED)


def watched_http(limits: HttpLimits, count: Cut, count_refusal: Callable[[int], None]) -> type[WatchedHttp]:
    """The protocol of one gateway's connections."""
    own = {"limits": limits, "count": staticmethod(count), "count_refusal": staticmethod(count_refusal)}
    return type("WatchedHttpOfGateway", (WatchedHttp,), own)


def backlog_of(scope: Scope) -> tuple[int, Cut] | None:
    """How many tokens may wait for the client of this request, and what cuts it off; None where HTTP is spoken by
    something else than a gateway, such as a test."""
    return scope.get(SCOPE_KEY)
