"""Cuts the connections of clients that do not read, so that what waits for them stays bounded.

    tokens -> backlog of the stream (a number of tokens) -> buffer of the connection (64 KiB) -> the kernel's -> client

The connection pauses the stream while its buffer is full. It is cut when the buffer stays full for too long, when the
end of a complete answer is not read for as long, or when the stream's backlog is full.
"""

import asyncio
from collections.abc import Callable

from starlette.types import Scope

from runtime.log import get_log

log = get_log("gateway.http")
SCOPE_KEY = "baton.slow_reader"
STALLED, BACKLOG = "stalled", "backlog"
Cut = Callable[[str], None]  # ends the connection for a reason


class SlowReader:
    """The client of one connection, once it leaves something unread. `count` is told why it is cut."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, timeout_s: float, count: Cut
    ) -> None:
        self._transport, self._loop, self._timeout_s, self._count = transport, loop, timeout_s, count
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Starts the clock anew if something is unread."""
        self.unwatch()
        if self._transport.get_write_buffer_size():
            self._timer = self._loop.call_later(self._timeout_s, self._stalled)

    def resumed(self, is_answered: bool) -> None:
        """The client reads again. It must take the rest of a complete answer, too."""
        self.unwatch()
        if is_answered:
            self.watch()

    def answered(self) -> None:
        """An answer is complete. A clock that runs goes on."""
        if self._timer is None:
            self.watch()

    def unwatch(self) -> None:
        """Stops the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cut(self, reason: str) -> None:
        """Ends the connection at once. What was not read is dropped."""
        self.unwatch()
        num_unread = self._transport.get_write_buffer_size()
        if num_unread or not self._transport.is_closing():
            self._count(reason)
            log.warning("slow reader cut", reason=reason, unread_bytes=num_unread)
            self._transport.abort()

    def _stalled(self) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size():
            self.cut(STALLED)


def backlog_of(scope: Scope) -> tuple[int, Cut] | None:
    """(tokens that may wait for the client of this request, how to cut its connection). None if the server is not a
    gateway, as in a test."""
    return scope.get(SCOPE_KEY)
