"""Time for decisions: seconds that only go forward.

Decisions take a Clock (or a `now`) as an argument. Only process loops hold a MonotonicClock.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since an arbitrary moment, never decreasing. All processes of one host share that moment."""

    def now(self) -> float:
        """The current time in seconds."""
        ...


class MonotonicClock:
    """The host's monotonic clock."""

    def now(self) -> float:
        """Seconds since the host started."""
        return time.monotonic()


class VirtualClock:
    """A clock that moves only when `advance` is called, for tests and simulation."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """The time last set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves forward by `seconds` (not negative)."""
        if seconds < 0:
            raise ValueError(f"VirtualClock.advance: got {seconds}, expected at least 0")
        self._now += seconds
