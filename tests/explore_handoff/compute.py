"""A worker's forward stream in virtual time: launches run one after the other, and each takes some time.

    queued ... begins ... [segments run somewhere here] ... layer marks, one by one ... ends

A launch may hang; then no later launch ever runs.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import Tensor

from scheduler.execution.streams import Event, Segment
from tests.explore_handoff.agenda import Agenda
from tests.explore_handoff.network import Host
from tests.explore_handoff.story import Story

COPY_S = 0.0005


@dataclass(frozen=True)
class TimedEvent:
    """Done from a moment on."""

    agenda: Agenda
    moment: float

    def done(self) -> bool:
        """Whether the moment has come."""
        return self.agenda.now >= self.moment

    def synchronize(self) -> None:
        """Nobody blocks in a simulated world."""
        assert self.done(), "somebody blocks"


class TimedStream:
    """`pace_s` is how long a launch takes at most. Whoever sets `hangs` makes the next one hang."""

    def __init__(self, agenda: Agenda, story: Story, host: Host, rng: random.Random, pace_s: float) -> None:
        self.hangs = False
        self._agenda = agenda
        self._story = story
        self._host = host
        self._rng = rng
        self._pace_s = pace_s
        self._free_at = 0.0  # when everything that is queued has ended
        self._queue: deque[tuple[Sequence[Segment], tuple[Any, ...], float]] = deque()
        self._mark_at = 0.0
        self._ends_at = 0.0  # of the launch that runs now

    @property
    def has_hung(self) -> bool:
        """Whether one of its launches never ends."""
        return self._free_at == inf

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Queues the segments."""
        begins = max(self._agenda.now, self._free_at)
        length = self._length(segments)
        self._free_at = begins + length
        if self._free_at < inf:
            self._queue.append((segments, used, self._free_at))
            self._agenda.at(begins + length * 0.7 * self._rng.random(), self._run)
            self._agenda.at(self._free_at, self._host.wake)

    def record(self) -> Event:
        """Done when everything queued so far has ended."""
        return TimedEvent(self._agenda, self._free_at)

    def wait(self, event: Event) -> None:
        """The schedule stream is always done, and this stream is in order."""
        assert event.done() or (isinstance(event, TimedEvent) and event.moment <= self._free_at)

    def synchronize(self) -> None:
        """Nobody blocks in a simulated world."""
        assert self._free_at <= self._agenda.now, "somebody blocks"

    def tell(self) -> None:
        """The scheduler polls here: nobody has to wake it."""

    def mark(self) -> Event:
        """Within a segment: some time before the launch ends, after the marks before."""
        self._mark_at += (self._ends_at - self._mark_at) * 0.6 * self._rng.random()
        self._agenda.at(self._mark_at, self._host.wake)
        return TimedEvent(self._agenda, self._mark_at)

    def to_host(self, source: Tensor) -> Tensor:
        """A copy."""
        return source.clone()

    def read_host(self, tensor: Tensor) -> list[int]:
        """The values."""
        values: list[int] = tensor.tolist()
        return values

    def close(self) -> None:
        """Its process ends."""

    def _length(self, segments: Sequence[Segment]) -> float:
        """How long they take: for ever, if they hang."""
        length = COPY_S if len(segments) == 1 else self._pace_s * (0.3 + 0.7 * self._rng.random())
        if self.hangs and len(segments) > 1:
            self.hangs, length = False, inf
            self._story.fault(self._agenda.now, self._host.name, "launch hangs", "it never ends")
        return length

    def _run(self) -> None:
        segments, used, self._ends_at = self._queue.popleft()
        if self._host.alive:
            self._mark_at = self._agenda.now
            for segment in segments:
                segment(*used)
