"""A descriptor that becomes readable at an interval, for loops that must also look at what has no descriptor."""

import ctypes
import os
from contextlib import suppress
from typing import Final

_CLOCK_MONOTONIC: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: the interval, then the first time; each in seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "first_s", "first_ns")]


class Ticker:
    """A timerfd. It does not tick until it is turned on."""

    def __init__(self, interval_s: float) -> None:
        self._interval_ns = int(interval_s * 1e9)
        self._is_on = False
        self.fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def turn(self, on: bool) -> None:
        """Turned on, it ticks after each interval. Turned off, it does not tick."""
        if on is not self._is_on:
            seconds, nanoseconds = divmod(self._interval_ns if on else 0, 10**9)
            spec = _TimerSpec(seconds, nanoseconds, seconds, nanoseconds)
            if _libc.timerfd_settime(self.fd, 0, ctypes.byref(spec), None) != 0:
                raise OSError(ctypes.get_errno(), "timerfd_settime")
            self._is_on = on

    def clear(self) -> None:
        """Makes the descriptor unreadable until the next tick."""
        with suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        """Closes the timer. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
