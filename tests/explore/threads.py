"""Real threads instead of a simulation: forward streams that pause before their segments for random moments.

The ranks of a group meet in memory, each in its forward thread, and their numbers really pass from one to another.
"""

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from model.collectives import Collectives
from protocol.messages_group import StepShape
from scheduler.execution.streams import Event, HostStream, InlineStream, Segment, Stream
from tests.doubles.collectives_simulated import GroupLog
from tests.doubles.streams_simulated import ScheduleViolation
from tests.model.ranks import Meeting, MetCollectives

PAUSES_S = (0.0, 0.0, 0.0, 0.0003, 0.002)
HANG_S = 120.0  # no thread takes so long


class HesitantStream(HostStream):
    """A HostStream that pauses before each segment, for as long as its seed says. `report` is told what a segment
    raises, or says that it has found."""

    def __init__(self, name: str, seed: str, on_event: Callable[[], None], report: Callable[[str], None]) -> None:
        super().__init__(name, on_event)
        self.report = report
        self.stands_at = "its start"
        self._rng = random.Random(seed)
        self._never = threading.Event()
        self.newest = self.record()

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Enqueues the segments, a pause before each."""
        for segment in segments:
            pause_s = self._rng.choice(PAUSES_S)
            super().launch([self._hesitant(segment, pause_s)], *used)

    def record(self) -> Event:
        """An event after everything launched so far."""
        self.newest = super().record()
        return self.newest

    def _hesitant(self, segment: Segment, pause_s: float) -> Segment:
        def run(*used: Any) -> None:
            self._never.wait(pause_s)
            self.stands_at = getattr(segment, "__name__", "a copy")
            try:
                segment(*used)
            except Exception as error:  # noqa: BLE001 - raised again on the test's thread
                self.report(f"{type(error).__name__}: {error}")

        return run


class Threads:
    """A schedule that the operating system makes. `stuck` says who waits for whom, when nothing goes on."""

    def __init__(self, seed: int) -> None:
        self.found = ""
        self.stuck: Callable[[], str] = lambda: ""
        self._seed = seed
        self._num_streams = 0
        self._streams: list[HesitantStream] = []
        self._groups: list[MetGroup] = []
        self._woken = threading.Event()

    def group(self, size: int) -> "MetGroup":
        """A group of so many ranks, whose streams are of this schedule."""
        self._groups.append(MetGroup(size))
        return self._groups[-1]

    def streams(self) -> tuple[Stream, Stream]:
        """A thread for forwards, the caller's for the schedule stream."""
        self._num_streams += 1
        seed = f"{self._seed}/{self._num_streams}"
        self._streams.append(HesitantStream(f"forward {seed}", seed, self._woken.set, self._report))
        return self._streams[-1], InlineStream()

    def point(self) -> None:
        """Time passes by itself."""
        if self.found:
            raise self.violation(self.found)

    def run_one(self) -> bool:
        """Waits until a thread has reached an event, however long it takes; False if none has anything to do."""
        if all(stream.newest.done() for stream in self._streams):
            return False
        assert self._woken.wait(HANG_S), f"no thread has reached an event for {HANG_S:.0f} s{self.stuck()}"
        self._woken.clear()
        return True

    def drop(self, stream: Stream) -> None:
        """The process of this stream is gone. What was queued fails, as its group has ended."""
        if stream in self._streams:
            self._streams.remove(stream)
            stream.close()

    def close(self) -> None:
        """Ends every thread."""
        for group in self._groups:
            group.end()
        for stream in list(self._streams):
            self.drop(stream)

    def violation(self, what: str) -> ScheduleViolation:
        """What went wrong; there is no trace of threads."""
        return ScheduleViolation(f"{what}\n  on host threads, seed {self._seed}")

    def _report(self, found: str) -> None:
        self.found = self.found or found
        self._woken.set()


class MetGroup(GroupLog[HesitantStream]):
    """A group whose ranks meet in memory, each in its own thread."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._meeting = Meeting(size)

    def join(self, forward: HesitantStream) -> Collectives:
        """See GroupLog."""
        return NotedCollectives(self, self._meeting, self.seat(forward))

    def end(self) -> None:
        """No rank enters anything any more, so that nobody waits for it."""
        for rank in range(self.size):
            self._meeting.leave(rank)


class NotedCollectives(MetCollectives):
    """Those of one rank. The log of its group compares what each rank enters."""

    def __init__(self, group: MetGroup, meeting: Meeting, rank: int) -> None:
        super().__init__(meeting, rank)
        self._group = group

    def gather(self, own_PE: Tensor, step: StepShape) -> Tensor:
        """See Collectives."""
        self._group.note(self.rank, "gather", own_PE, step)
        return super().gather(own_PE, step)

    def exchange(self, parts_RPE: Tensor, step: StepShape) -> Tensor:
        """See Collectives."""
        self._group.note(self.rank, "exchange", parts_RPE, step)
        return super().exchange(parts_RPE, step)
