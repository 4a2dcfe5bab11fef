"""Real threads instead of a simulation: forward streams that pause before their segments for random moments."""

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from scheduler.execution.streams import Event, HostStream, InlineStream, Segment, Stream
from tests.doubles.streams_simulated import ScheduleViolation

PAUSES_S = (0.0, 0.0, 0.0, 0.0003, 0.002)


class HesitantStream(HostStream):
    """A HostStream that pauses before each segment, for as long as its seed says."""

    def __init__(self, name: str, seed: str, on_event: Callable[[], None]) -> None:
        super().__init__(name, on_event)
        self._rng = random.Random(seed)
        self._never = threading.Event()
        self.newest = self.record()

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Enqueues the segments, a pause before each."""
        for segment in segments:
            pause = self._rng.choice(PAUSES_S)
            super().launch([self._pausing(pause), segment], *used)

    def record(self) -> Event:
        """An event after everything launched so far."""
        self.newest = super().record()
        return self.newest

    def _pausing(self, seconds: float) -> Segment:
        def pause(*used: Any) -> None:
            self._never.wait(seconds)

        return pause


class Threads:
    """A schedule that the operating system makes."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: list[HesitantStream] = []
        self._woken = threading.Event()

    def streams(self) -> tuple[Stream, Stream]:
        """A thread for forwards, the caller's for the schedule stream."""
        seed = f"{self._seed}/{len(self._streams) + 1}"
        self._streams.append(HesitantStream(f"forward {seed}", seed, self._woken.set))
        return self._streams[-1], InlineStream()

    def point(self) -> None:
        """Time passes by itself."""

    def run_one(self) -> bool:
        """Waits until a thread has reached an event, however long it takes; False if none has anything to do."""
        if all(stream.newest.done() for stream in self._streams):
            return False
        self._woken.wait()
        self._woken.clear()
        return True

    def violation(self, what: str) -> ScheduleViolation:
        """What went wrong; there is no trace of threads."""
        return ScheduleViolation(f"{what}\n  on host threads, seed {self._seed}")
