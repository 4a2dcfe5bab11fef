"""A loop and a transport that a test holds in its hand: timers fire, and bytes wait for the client, as it says."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast


class Timer:
    """What call_later gives."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self.seconds, self.act, self.is_due, self.is_cancelled = seconds, act, True, False

    def cancel(self) -> None:
        self.is_due, self.is_cancelled = False, True

    def cancelled(self) -> bool:
        return self.is_cancelled


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
    """Stands in for a task that never ends."""

    def add_done_callback(self, act: Callable[..., None]) -> None:
        """Never calls `act`."""


class Transport:
    """`num_unread` bytes wait for the client."""

    def __init__(self) -> None:
        self.written, self.num_unread = b"", 0
        self.is_closed = self.is_aborted = self.is_ended = False

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
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    def resume_reading(self) -> None:
        """Nothing comes by itself."""
