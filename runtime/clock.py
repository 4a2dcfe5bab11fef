"""Time for decisions: seconds that only go forward, and deadlines.

Decisions take a Clock (or a `now`) as an argument. Only process loops hold a MonotonicClock.
"""

import time
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


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


class ThreadWorkClock:
    """The seconds of processor time that the calling thread has used. A busy machine does not make it go faster."""

    def now(self) -> float:
        """Seconds of work since this thread started."""
        return time.thread_time()


class Deadlines(Generic[Key]):
    """One deadline per key, in seconds of the caller's clock. The cost of a look does not grow with their number."""

    def __init__(self) -> None:
        self._at: dict[Key, tuple[float, int]] = {}  # the deadline that counts, and its number
        self._heap: list[tuple[float, int, Key]] = []  # may hold replaced and dropped deadlines
        self._numbers = count()

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._at))

    def set(self, key: Key, at: float) -> None:
        """Sets the deadline of `key` to `at`, in place of an earlier one."""
        number = next(self._numbers)
        self._at[key] = at, number
        heappush(self._heap, (at, number, key))
        if len(self._heap) > 2 * len(self._at) + 64:  # most were replaced or dropped
            self._heap = [(at, number, key) for key, (at, number) in self._at.items()]
            heapify(self._heap)

    def drop(self, key: Key) -> None:
        """Forgets the deadline of `key`. Idempotent."""
        self._at.pop(key, None)

    def due(self, now: float) -> list[Key]:
        """Drops and returns the keys whose deadline has come, the earliest first."""
        keys: list[Key] = []
        while self._heap and self._heap[0][0] <= now:
            at, number, key = heappop(self._heap)
            if self._at.get(key) == (at, number):
                del self._at[key]
                keys.append(key)
        return keys
