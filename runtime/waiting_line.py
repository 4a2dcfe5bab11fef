"""The order in which requests get memory or workers: a line of those that wait.

    those that gave way and began again, in the order in which they came back
    then the others, by the time that counts for them: arrival + level_s * priority

A level of priority weighs as much as `level_s` seconds of waiting. So a request that has waited long enough is served
before any newcomer, whatever its priority. The order of two requests never changes while they wait.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final, Generic, TypeVar

LEVEL_S: Final = 1.0
NEAR: Final = 16  # at most so many are compared by their prefixes,
NEAR_LEVELS: Final = 10  # of those whose times differ by less

T = TypeVar("T")
Place = tuple[bool, float, int, int, T]  # (is new, time that counts, number of arrival, priority, request)


class WaitingLine(Generic[T]):
    """`prefix` tells how many tokens of a request are cached: of requests with the same priority and nearly the same
    time, the one with most of them is first ("lpm"). Without it, the earliest is ("fcfs").

    A look at the first one costs the same however many wait.
    """

    def __init__(self, prefix: Callable[[T], int] | None = None, level_s: float = LEVEL_S) -> None:
        self._prefix, self._level_s = prefix, level_s
        self._numbers = count()
        self._line: list[Place[T]] = []
        self._places: dict[T, Place[T]] = {}
        self._first: T | None = None  # as long as nobody comes and it does not leave

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, request: T) -> bool:
        return request in self._places

    def __iter__(self) -> Iterator[T]:
        return (entry[-1] for entry in self._line)

    def add(self, request: T, now: float, priority: int = 0, *, resumes: bool = False) -> None:
        """It waits from `now` on, in seconds of one clock. `resumes`: it had to give way."""
        time = 0.0 if resumes else now + self._level_s * priority
        entry = (not resumes, time, next(self._numbers), priority, request)
        self._places[request] = entry
        insort(self._line, entry)
        self._first = None

    def remove(self, request: T) -> None:
        """It waits no longer. A second call does nothing."""
        entry = self._places.pop(request, None)
        if entry is not None:
            del self._line[bisect_left(self._line, entry)]
            if request is self._first:
                self._first = None

    def first(self) -> T | None:
        """The request that is served next."""
        if self._first is None and self._line:
            self._first = self._line[0][-1] if self._prefix is None else self._longest_prefix(self._prefix)
        return self._first

    def rank(self, request: T) -> tuple[bool, float]:
        """What comes first in this line comes before that in another one if its rank is smaller."""
        return self._places[request][:2]

    def _longest_prefix(self, prefix: Callable[[T], int]) -> T:
        """Of those near the earliest, with its priority: the first with the longest cached prefix. Who resumes does not
        wait for that."""
        is_new, earliest, _, priority, first = self._line[0]
        if not is_new:
            return first
        latest = earliest + NEAR_LEVELS * self._level_s
        near = [entry[-1] for entry in self._line[:NEAR] if entry[1] < latest and entry[3] == priority]
        return max(near, key=prefix)
