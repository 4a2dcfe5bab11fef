"""The forward stream of a rank in virtual time: what follows a forward waits until all ranks have computed theirs.

    queued ... begins ... [resolve, compute: enters collectives] ... all ranks have entered ... [sample, copy] ... ends

A rank that never comes holds the others up for ever. So does a launch that hangs before its collectives.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from scheduler.execution.streams import Event, Segment
from tests.doubles.collectives_simulated import Entered
from tests.explore_handoff.agenda import Agenda
from tests.explore_handoff.compute import TimedEvent, TimedStream
from tests.explore_handoff.network import Host
from tests.explore_handoff.story import Story

PASS_S = 0.0002  # until a rank goes on when the last one has entered, at most


@dataclass
class _Queued:
    """What a launch has still to do. `seconds`: how long it takes, if it waits for nobody."""

    segments: deque[Segment]
    used: tuple[Any, ...]
    seconds: float


@dataclass(frozen=True)
class _Reached:
    """So many launches are over."""

    stream: "RankStream"
    number: int

    def done(self) -> bool:
        """Whether they are."""
        return self.stream.num_over >= self.number

    def synchronize(self) -> None:
        """Nobody blocks in a simulated world."""
        assert self.done(), "somebody blocks"


@dataclass(frozen=True)
class _Marked:
    """A moment has come, and all ranks have entered what was entered before it."""

    moment: TimedEvent
    behind: tuple[Event, ...]

    def done(self) -> bool:
        """Whether both is so."""
        return self.moment.done() and all(event.done() for event in self.behind)

    def synchronize(self) -> None:
        """Nobody blocks in a simulated world."""
        assert self.done(), "somebody blocks"


class RankStream(TimedStream):
    """`others` are the streams of all ranks of its group, as they join. `hurts` is told of a launch that hangs."""

    def __init__(
        self,
        agenda: Agenda,
        story: Story,
        host: Host,
        rng: random.Random,
        pace_s: float,
        others: Sequence["RankStream"],
        hurts: Callable[[str], None],
    ) -> None:
        super().__init__(agenda, story, host, rng, pace_s)
        self._others, self._hurts = others, hurts
        self.num_over = 0
        self._num_queued = 0
        self._jobs: deque[_Queued] = deque()  # the first of them runs
        self._held_by: list[Event] = []
        self._found = ""

    @property
    def stands_at(self) -> str:
        """See tests.doubles.collectives_simulated.RankStream."""
        if not self._host.alive:
            return f"the end of {self._host.name}"
        if not self._jobs:
            return f"no launch of {self._host.name}"
        return f"launch {self.num_over + 1} of {self._host.name}" + (", which hangs" if self._is_hung else "")

    @property
    def doing(self) -> str:
        """See worker.group_link.GroupLink."""
        entered = next((event for event in self._held_by if not event.done()), None)
        return "" if entered is None else _said(entered)

    def report(self, found: str) -> None:
        """Within a segment: what its launch may catch. Raised when the segment has run."""
        self._found = found

    def hold(self, event: Event) -> None:
        """Within a segment: what follows it runs after `event`."""
        self._held_by.append(event)

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Queues the segments."""
        self._num_queued += 1
        self._jobs.append(_Queued(deque(segments), used, self._length(segments)))
        if self._jobs[-1].seconds == inf:
            self._hurts(f"a launch of {self._host.name} hangs")
        if len(self._jobs) == 1:
            self._begin()

    def record(self) -> Event:
        """Done when everything queued so far has ended."""
        return _Reached(self, self._num_queued)

    def wait(self, event: Event) -> None:
        """The schedule stream is always done, and this stream is in order."""
        assert event.done() or (isinstance(event, _Reached) and event.stream is self)

    def synchronize(self) -> None:
        """Nobody blocks in a simulated world."""
        assert not self._jobs, "somebody blocks"

    def mark(self) -> Event:
        """Within a segment: some time before the launch ends, after the marks before and what was entered before."""
        moment = super().mark()
        assert isinstance(moment, TimedEvent)
        return _Marked(moment, tuple(self._held_by))

    @property
    def _is_hung(self) -> bool:
        return bool(self._jobs) and self._jobs[0].seconds == inf

    def _begin(self) -> None:
        if not self._is_hung:
            self._mark_at, self._ends_at = self._agenda.now, self._agenda.now + self._jobs[0].seconds
            self._agenda.after(self._jobs[0].seconds * 0.7 * self._rng.random(), self._go_on)

    def _go_on(self) -> None:
        """Runs segments, up to one that other ranks hold up."""
        job = self._jobs[0]
        self._mark_at = max(self._mark_at, self._agenda.now)
        while self._host.alive and job.segments and not self._held_by:
            job.segments.popleft()(*job.used)
            assert not self._found, self._found
        if self._held_by:
            for stream in self._others:
                self._agenda.after(PASS_S * self._rng.random(), stream._pass)
        elif self._host.alive:
            self._agenda.at(max(self._agenda.now, self._ends_at), self._end)

    def _pass(self) -> None:
        """Another rank has entered something. This one goes on, if it was the last."""
        if self._held_by and all(event.done() for event in self._held_by):
            self._held_by.clear()
            self._host.wake()
            self._go_on()

    def _end(self) -> None:
        self._jobs.popleft()
        self.num_over += 1
        self._host.wake()
        if self._jobs:
            self._begin()


def _said(event: Event) -> str:
    assert isinstance(event, Entered)
    tag = event.tag
    return f"{tag.operation} {tag.call} of step {tag.step}"
