"""Forward streams that note when each segment of a launch begins and ends, and what follows from that.

On a device, events are recorded between the segments, so the times are the device's. On a CPU the thread reads a clock.
A launch that proposes has the segments write, propose, verify, publish | extend: see
scheduler/speculation/draft_launches.py.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

import torch

from bench.gpu.timing import ReplayedCudaStream
from bench.step.decoding import Idling, ReplayedStream
from runtime.clock import Clock, MonotonicClock
from scheduler.execution.streams import Segment


@dataclass(frozen=True)
class Span:
    """One segment, in seconds from the first one's beginning."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Parts:
    """Milliseconds of a launch with a draft, medians. `bubble`: from the end of extend to the beginning of the next
    propose, in which the draft's KV may be written, too. `idle`: no segment runs, in the whole launch."""

    propose: float
    verify: float
    extend: float
    bubble: float
    idle: float


def parts_of(spans: Sequence[Span]) -> Parts:
    """`spans` in the order in which they ran. ValueError unless two launches are whole."""
    proposals = [index for index, span in enumerate(spans) if span.name == "propose"]
    bubbles, idles = [], []
    for first, following in pairwise(proposals):
        launch = spans[first : following + 1]
        if (extend := next((span for span in launch if span.name == "extend"), None)) is None:
            raise ValueError("a launch has no segment called extend")
        bubbles.append(launch[-1].start_s - extend.end_s)
        idles.append(sum(max(0.0, later.start_s - earlier.end_s) for earlier, later in pairwise(launch)))
    if not bubbles:
        raise ValueError(f"got {len(proposals)} launches that propose, expected at least 2")

    def duration(name: str) -> float:
        return median(span.end_s - span.start_s for span in spans if span.name == name) * 1e3

    gaps = (median(bubble) * 1e3 for bubble in (bubbles, idles))
    return Parts(duration("propose"), duration("verify"), duration("extend"), *gaps)


def name_of(segment: Segment) -> str:
    """The name of the function that a segment is."""
    return str(getattr(segment, "__name__", "other"))


class Marked(Idling, Protocol):
    """A forward stream that notes segments while `is_marking`."""

    is_marking: bool

    def spans(self) -> list[Span]:
        """What was noted, after all that was launched has run."""
        ...


class MarkedHostStream(ReplayedStream):
    """See Marked. A thread of this process."""

    def __init__(self) -> None:
        self.is_marking = False
        self._spans: list[Span] = []
        self._marks: Clock = MonotonicClock()
        super().__init__(os.sched_getaffinity(0), 1, self._marks)

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Like ReplayedStream's."""
        super().launch([partial(self._noted, segment) for segment in segments] if self.is_marking else segments, *used)

    def _noted(self, segment: Segment, *used: Any) -> None:
        start_s = self._marks.now()
        segment(*used)
        self._spans.append(Span(name_of(segment), start_s, self._marks.now()))

    def spans(self) -> list[Span]:
        """See Marked."""
        self.record().synchronize()
        return [Span(span.name, span.start_s - self._spans[0].start_s, span.end_s - self._spans[0].start_s)
                for span in self._spans]  # fmt: skip


class MarkedCudaStream(ReplayedCudaStream):
    """See Marked. A stream of a device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.is_marking = False
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Like ReplayedCudaStream's."""
        super().launch([partial(self._noted, segment) for segment in segments] if self.is_marking else segments, *used)

    def _noted(self, segment: Segment, *used: Any) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(self._own)
        segment(*used)
        end.record(self._own)
        self._events.append((name_of(segment), start, end))

    def spans(self) -> list[Span]:
        """See Marked."""
        self.record().synchronize()
        zero = self._events[0][1]
        return [Span(name, zero.elapsed_time(start) / 1e3, zero.elapsed_time(end) / 1e3)
                for name, start, end in self._events]  # fmt: skip


def marked_stream(device: torch.device) -> Marked:
    """A new forward stream."""
    return MarkedCudaStream(device) if device.type == "cuda" else MarkedHostStream()
