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
