"""Which of many waits are over. A look costs the same however many there are, apart from those that it finds.

What it does not know: what is waited for.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Deadlines(Generic[Key]):
    """One deadline per key, in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._at: dict[Key, tuple[float, int]] = {}  # the deadline that counts, and its number
        self._heap: list[tuple[float, int, Key]] = []  # with some that count no more
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: Key, at: float) -> None:
        """The deadline of `key` is `at`; an earlier word about it is void."""
        number = next(self._numbers)
        self._at[key] = at, number
        heappush(self._heap, (at, number, key))
        if len(self._heap) > 2 * len(self._at) + 64:  # most count no more
            self._heap = [(at, number, key) for key, (at, number) in self._at.items()]
            heapify(self._heap)

    def drop(self, key: Key) -> None:
        """Nothing is waited for under `key`. Idempotent."""
        self._at.pop(key, None)

    def due(self, now: float) -> list[Key]:
        """Those whose deadline has come, the earliest first. They are dropped."""
        found: list[Key] = []
        while self._heap and self._heap[0][0] <= now:
            at, number, key = heappop(self._heap)
            if self._at.get(key) == (at, number):
                del self._at[key]
                found.append(key)
        return found
