"""The order in which requests get memory or workers: a line of those that wait.

    those that resume, in the order in which they came back
    then the others, by the time that counts for them: arrival + level_s * priority

A level of priority weighs as much as `level_s` seconds of waiting. So a request that has waited long enough is served
before any newcomer, whatever its priority. The order of two requests never changes while they wait.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar

LEVEL_S: Final = 1.0
NEAR: Final = 16  # at most so many are compared by their prefixes,
NEAR_LEVELS: Final = 10  # of those whose times differ by less

T = TypeVar("T")


class _Entry(NamedTuple, Generic[T]):
    """A request in the line. Entries are sorted by their fields, from the first on; no two have the same `number`."""

    is_new: bool  # it does not resume
    time: float  # that counts for it
    number: int  # of arrival
    priority: int
    request: T


class WaitingLine(Generic[T]):
    """`prefix` tells how many tokens of a request are cached: of requests with the same priority and nearly the same
    time, the one with most of them is first ("lpm"). Without it, the earliest is ("fcfs").

    A look at the first one costs the same however many wait.
    """

    def __init__(self, prefix: Callable[[T], int] | None = None, level_s: float = LEVEL_S) -> None:
        self._prefix, self._level_s = prefix, level_s
        self._numbers = count()
        self._line: list[_Entry[T]] = []
        self._entries: dict[T, _Entry[T]] = {}
        self._first: T | None = None  # as long as nobody comes and it does not leave

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, request: T) -> bool:
        return request in self._entries

    def __iter__(self) -> Iterator[T]:
        return (entry.request for entry in self._line)

    def add(self, request: T, now: float, priority: int = 0, *, resumes: bool = False) -> None:
        """`request` waits from `now` on, in seconds of one clock. `resumes`: it was preempted, so it comes first."""
        time = 0.0 if resumes else now + self._level_s * priority
        entry = _Entry(not resumes, time, next(self._numbers), priority, request)
        self._entries[request] = entry
        insort(self._line, entry)
        self._first = None

    def remove(self, request: T) -> None:
        """Takes `request` out of the line. A second call does nothing."""
        entry = self._entries.pop(request, None)
        if entry is not None:
            del self._line[bisect_left(self._line, entry)]
            if request is self._first:
                self._first = None

    def first(self) -> T | None:
        """The request that is served next."""
        if self._first is None and self._line:
            self._first = self._line[0].request if self._prefix is None else self._longest_prefix(self._prefix)
        return self._first

    def rank(self, request: T) -> tuple[bool, float]:
        """Sorts the first requests of two lines: the one with the smaller rank is served first."""
        return self._entries[request][:2]

    def _longest_prefix(self, prefix: Callable[[T], int]) -> T:
        """The request with the longest cached prefix, of those with the earliest one's priority and nearly its time. A
        request that resumes is first in any case."""
        first = self._line[0]
        if not first.is_new:
            return first.request
        latest = first.time + NEAR_LEVELS * self._level_s
        near = [
            entry.request for entry in self._line[:NEAR] if entry.time < latest and entry.priority == first.priority
        ]
        return max(near, key=prefix)
