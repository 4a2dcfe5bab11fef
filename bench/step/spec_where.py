"""Where the CPU time of a launch goes, by its segments and by what the host does before each: with a draft and without.

One thread does all, so nothing overlaps and nothing is waited for. Chunks of prompts do not count.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import thread_time
from typing import Any, Final

from bench.rounds import in_rounds
from bench.sheet import Sheet
from bench.step.decoding import executor_of
from bench.step.serving import Load, served
from model.draft import begins_with
from model.runner import ModelRunner
from runtime.clock import MonotonicClock
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.streams import InlineStream, Segment
from scheduler.planning.speculation import Speculation

SIDES: Final = {"without": NO_DRAFT, "4 steps": DraftShape(4), "tree 4, top-k 2, 8 nodes": DraftShape(4, 2, 8)}
ABOUT: Final = "Microseconds of CPU of one launch, medians. *host before X*: from the segment before it to X."


class TimedStream(InlineStream):
    """Runs segments at once, and notes the time of each, and of what lies before it, by the segment's name."""

    def __init__(self, now: Callable[[], float] = thread_time) -> None:
        self.spent_us: dict[str, list[float]] = defaultdict(list)
        self._now = now
        self._last = now()

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """See InlineStream."""
        self._note(segments[0], "host before ")
        for segment in segments:
            segment(*used)
            self._note(segment)

    def _note(self, segment: Segment, what: str = "") -> None:
        name = what + str(getattr(segment, "__name__", "copy"))
        now = self._now()
        self.spent_us[name].append(1e6 * (now - self._last))
        self._last = self._now()


def where(sheet: Sheet, runner: ModelRunner, load: Load, turns: int) -> None:
    """Writes a row for each part of each side, the longest first, and one for all parts."""

    def of(shape: DraftShape) -> Mapping[str, Sequence[float]]:
        used = runner if shape.num_steps else replace(runner, draft=None, draft_checkpoint=None)
        stream, clock = TimedStream(), MonotonicClock()
        executor = executor_of(used, len(load.prompts), load.longest + 1, stream, shape=shape)
        speculation = Speculation(shape, begins_with(runner.draft), None, clock) if shape.num_steps else None
        served(executor, load, clock, lambda: None, speculation)
        return stream.spent_us

    for side, runs in in_rounds({name: partial(of, shape) for name, shape in SIDES.items()}, turns).items():
        for cells in rows_of(runs):
            sheet.row("Where a launch's time goes", {"batch": len(load.prompts), "side": side, **cells}, ABOUT)


def rows_of(runs: Sequence[Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """The median of each part that most launches have, the longest first, behind their sum."""
    first = runs[0]
    often = [name for name, times in first.items() if 2 * len(times) > max(map(len, first.values()))]
    parts = {name: median(seconds for run in runs for seconds in run[name]) for name in often}
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return [{"part": name, "us": us} for name, us in (("all", sum(parts.values())), *ordered)]
