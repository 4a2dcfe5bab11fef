"""Streams without a device: one thread, and a seed that decides when each queued item runs, within the declared waits.

    host        launch, record, wait ----> queues of items: Segment, Mark, Copy, Wait
    simulation  runs the head of a queue whenever its strategy says so: after any call of the host, or when it waits

A CPU runs in order, and a GPU almost always does. So a missing wait, a reused row or a changed tensor shows on neither;
here it changes tokens every time. A launch holds its tensors weakly: a tensor that nobody else keeps is gone when the
launch runs. What the host computes counts as done on the device only when a stream waits for the schedule stream. Until
then a launch reads poison. What a forward has written reaches the schedule stream only when that waits for the forward
stream (stale_view.py).
"""

import random
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from scheduler.execution.streams import Event, Segment, tensors_of
from tests.doubles.poison import poisoned
from tests.doubles.race_detector import SCHEDULER, Clock, RaceDetector
from tests.doubles.stale_view import Snapshot, StaleView
from tests.doubles.strategies import Decisions, Strategy, decisions_of

POISON_INT = -(2**62)
POISONS = {torch.int64: POISON_INT, torch.int32: 0x7FC0DEAD}  # as a float32 the last one is a NaN
TRACE_LINES = 60  # of the newest, kept for a failing schedule


class ScheduleViolation(AssertionError):
    """A schedule that the declared waits allow has read or written what it must not. Its text is a trace."""


@dataclass(eq=False)
class SimulatedEvent:
    """A point in a simulated stream. `position` is how far the schedule stream's work is known by it."""

    simulation: "Simulation"
    name: str
    position: int = 0
    reached: bool = False
    clock: Clock = field(default_factory=dict)  # for the race detector: what is known where it stands
    snapshots: dict[StaleView, Snapshot] = field(default_factory=dict)  # of what schedule streams read

    def done(self) -> bool:
        """Whether the point has been reached; asking lets time pass."""
        self.simulation.point()
        if self.reached:
            self.simulation.host_sees(self)
        return self.reached

    def synchronize(self) -> None:
        """Runs what must run until it is."""
        self.simulation.run_until(self)
        self.simulation.host_sees(self)


@dataclass(frozen=True)
class _Segment:
    name: str
    call: Segment
    used: tuple["_Weak", ...]
    made_at: int  # how far the schedule stream must be for the inputs to be there
    clock: Clock  # for the race detector: what the launch passes on


@dataclass(frozen=True)
class _Reach:
    event: SimulatedEvent


@dataclass(frozen=True)
class _Copy:
    source: Tensor
    target: Tensor


@dataclass(frozen=True)
class _Wait:
    event: Event


@dataclass(frozen=True)
class _Weak:
    """Something that a launch uses, held as a device would hold it: not at all."""

    ref: Callable[[], Any]

    @staticmethod
    def of(used: Any) -> "_Weak":
        return _Weak(weakref.ref(used))

    def get(self, name: str) -> Any:
        found = self.ref()
        if found is None:
            raise ScheduleViolation(f"{name} uses a tensor that nobody keeps alive")
        return found


_Item = _Segment | _Reach | _Copy | _Wait


@dataclass(eq=False)
class SimulatedStream:
    """One queue. Tensor operations of the host outside of segments belong to its schedule stream (`is_schedule`).

    They happen at once, so that they must not touch what a queued segment of that stream touches, but count as done on
    the device only when a stream waits for them.
    """

    simulation: "Simulation"
    name: str
    is_schedule: bool = False
    items: deque[_Item] = field(default_factory=deque)
    seen: int = 0  # how far this stream knows the schedule stream
    actor: int = SCHEDULER  # for the race detector; the schedule stream is one of its own from its first segment on
    views: list[StaleView] = field(default_factory=list)  # of what this schedule stream reads and others write
    _inserted: list[_Item] = field(default_factory=list)  # by the segment that runs now
    _num_launches: int = 0
    tell = staticmethod(lambda: None)  # the scheduler polls here: nobody has to wake it

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Queues the segments."""
        self._num_launches += 1
        self.simulation.position += 1
        clock: Clock = {}
        if (detector := self.simulation.detector) is not None:
            if self.is_schedule and self.actor == SCHEDULER:
                self.actor = detector.actor(self.name, is_schedule=True)
            clock = detector.clock(SCHEDULER) if self.is_schedule else detector.at_launch()
            detector.named(tensors_of(used), self.actor)
        made_at = self.simulation.made_at  # nobody writes what an earlier launch has used
        position = max((made_at.setdefault(each, self.simulation.position) for each in used), default=0)
        for segment in segments:
            name = f"{self.name} launch {self._num_launches} {_name(segment)}"
            self.items.append(_Segment(name, segment, tuple(_Weak.of(each) for each in used), position, clock))
        self.simulation.note(f"host queues {self.name} launch {self._num_launches}")
        self.simulation.point()

    def record(self) -> Event:
        """An event behind what is queued now."""
        event = SimulatedEvent(self.simulation, f"{self.name} event", self.simulation.position + 1)
        if self.is_schedule and (detector := self.simulation.detector) is not None:
            event.clock = detector.clock(SCHEDULER)
        if self.is_schedule and not self.items:
            self._reach(event)
        else:
            self.items.append(_Reach(event))
        self.simulation.point()
        return event

    def wait(self, event: Event) -> None:
        """Items queued from now on run after `event`."""
        self.items.append(_Wait(event))
        self.simulation.point()

    def synchronize(self) -> None:
        """Runs everything that is queued."""
        self.record().synchronize()

    def mark(self) -> Event:
        """Within a segment: seen by the host when the strategy lets it."""
        event = SimulatedEvent(self.simulation, f"{self.name} mark", self.simulation.position)
        self._inserted.append(_Reach(event))
        return event

    def hold(self, event: Event) -> None:
        """Within a segment: what follows it on this stream runs after `event`."""
        self._inserted.append(_Wait(event))

    def report(self, found: str) -> None:
        """Within a segment: what its launch may catch. Raised again by whatever comes next."""
        self.simulation.found = found

    def to_host(self, source: Tensor) -> Tensor:
        """Within a segment: poison until the copy runs."""
        target = torch.full_like(source, POISONS[source.dtype])
        self._inserted.append(_Copy(source, target))
        return target

    def read_host(self, tensor: Tensor) -> list[int]:
        """The values; a copy that has not run yet is a violation."""
        if (detector := self.simulation.detector) is not None:
            detector.touch([tensor], "read_host")
            self.simulation.check_races()
        values: list[int] = tensor.tolist()
        if POISONS[tensor.dtype] in values:
            raise self.simulation.violation("the host reads results before their copy has run")
        return values

    def close(self) -> None:
        """Runs everything that is queued, unless the stream's process has been killed."""
        if self in self.simulation.streams_alive:
            self.synchronize()

    def share(self, tensor: Tensor) -> None:
        """Segments of this schedule stream read `tensor`, others write it. Called before anybody has written it."""
        self.views.append(StaleView(tensor))
        self.simulation.views.append(self.views[-1])

    # ---- for the simulation ----

    @property
    def can_run(self) -> bool:
        """Whether the head of the queue may run now."""
        if not self.items:
            return False
        head = self.items[0]
        return not isinstance(head, _Wait) or _is_reached(head.event)

    @property
    def stands_at(self) -> str:
        """What would run next."""
        head = self.items[0] if self.items else None
        if isinstance(head, _Segment):
            return head.name
        if isinstance(head, _Wait):
            return f"{self.name}'s wait for {head.event}"
        return f"an event or a copy of {self.name}" if head else f"the end of {self.name}"

    @property
    def is_copy_next(self) -> bool:
        """Whether the head of the queue is a copy to the host."""
        return bool(self.items) and isinstance(self.items[0], _Copy)

    def run_head(self) -> None:
        """Runs one item; `can_run` holds."""
        item = self.items.popleft()
        if isinstance(item, _Reach):
            self._reach(item.event)
        elif isinstance(item, _Copy):
            self.simulation.note(f"{self.name} copies results to the host")
            with torch.inference_mode(), self._acting(f"{self.name}'s copy of results to the host"):
                item.target.copy_(item.source)
        elif isinstance(item, _Wait):
            self.seen = max(self.seen, getattr(item.event, "position", 0))
            self._learn(getattr(item.event, "clock", {}))
            for view, snapshot in getattr(item.event, "snapshots", {}).items():
                if view in self.views:
                    view.learn(snapshot)
        else:
            self._run_segment(item)

    def _run_segment(self, item: _Segment) -> None:
        try:
            used = [weak.get(item.name) for weak in item.used]
        except ScheduleViolation as gone:
            raise self.simulation.violation(str(gone)) from None
        is_eager = self.simulation.is_schedule_eager
        is_ready = self.is_schedule or self.seen >= item.made_at or is_eager
        self.simulation.note(f"runs {item.name}" + ("" if is_ready else ", whose inputs are not there yet"))
        self._learn(item.clock)
        with ExitStack() as stack:
            if not is_ready:
                stack.enter_context(poisoned(tensors_of(used)))
            for view in () if is_eager else self.views:
                stack.enter_context(view.shown())
            stack.enter_context(self._acting(item.name))
            item.call(*used)
        self.items.extendleft(reversed(self._inserted))
        self._inserted.clear()

    def _reach(self, event: SimulatedEvent) -> None:
        event.reached = True
        if (detector := self.simulation.detector) is not None:
            for actor, known in detector.clock(self.actor).items():
                event.clock[actor] = max(event.clock.get(actor, 0), known)
        if not self.is_schedule:
            event.snapshots = {view: view.snapshot() for view in self.simulation.views}

    def _learn(self, clock: Clock) -> None:
        if (detector := self.simulation.detector) is not None:
            detector.learn(self.actor, clock)

    def _acting(self, where: str) -> AbstractContextManager[None]:
        detector = self.simulation.detector
        return nullcontext() if detector is None else detector.acting(self.actor, where)


class Simulation:
    """The streams of one or more engines, and when their items run. The same seed gives the same schedule."""

    def __init__(
        self,
        strategy: Strategy,
        seed: int,
        decisions: Decisions | None = None,
        detector: RaceDetector | None = None,
    ) -> None:
        self.strategy, self.seed = strategy, seed
        self.detector = detector
        self.position = 0  # of the schedule stream's work
        self.made_at: WeakIdKeyDictionary = (
            WeakIdKeyDictionary()
        )  # by what launches have used: the position at the first
        self.num_run = 0
        self._rng = random.Random(seed)
        self._decisions = decisions or decisions_of(strategy, self._rng)
        self.streams_alive: list[SimulatedStream] = []
        self.views: list[StaleView] = []
        self.found = ""  # by a segment, that a launch may have caught: raised again by whatever comes next
        self._trace: deque[str] = deque(maxlen=TRACE_LINES)
        self._is_inside = False  # a segment that polls must not start another

    @property
    def is_schedule_eager(self) -> bool:
        """Whether the schedule stream's work is done at once."""
        return self.strategy is Strategy.IN_ORDER

    def stream(self, name: str, *, is_schedule: bool = False) -> SimulatedStream:
        """A new stream."""
        stream = SimulatedStream(self, name, is_schedule)
        self.streams_alive.append(stream)
        if not is_schedule:
            stream.actor = SCHEDULER if self.detector is None else self.detector.actor(name)
        return stream

    def streams(self) -> tuple[SimulatedStream, SimulatedStream]:
        """A forward and a schedule stream, for one more worker."""
        return self.stream("forward"), self.stream("schedule", is_schedule=True)

    def point(self) -> None:
        """Time passes: the strategy may run something."""
        if self._is_inside:
            return
        self.check_races()
        while ready := self._ready():
            stream = self._decisions.pick(ready, self._rng)
            if not self._decisions.more(stream):
                return
            self._run(stream)

    def run_one(self) -> bool:
        """Runs something although the strategy would not, because nothing else is left to do; False if nothing can."""
        ready = self._ready()
        if not ready:
            return False
        self._run(self._decisions.pick(ready, self._rng))
        return True

    def run_until(self, event: SimulatedEvent) -> None:
        """The host waits for `event`."""
        while not event.reached:
            if not self.run_one():
                raise self.violation(f"the host waits for ever for {event.name}")

    def host_sees(self, event: SimulatedEvent) -> None:
        """The host knows that `event` is reached, and goes on after all that lies before it."""
        if self.detector is not None:
            self.detector.learn(SCHEDULER, event.clock)

    def drop(self, stream: SimulatedStream) -> None:
        """The process of this stream has been killed: nothing of it runs any more."""
        stream.items.clear()
        self.streams_alive.remove(stream)

    def check_races(self) -> None:
        """Raises if the detector has found a race, or a segment something else; again and again, because a launch or a
        loop may catch it."""
        if self.found:
            raise self.violation(self.found)
        if self.detector is not None and self.detector.race:
            raise self.violation(self.detector.race)

    def note(self, what: str) -> None:
        """A line of the trace."""
        self._trace.append(what)

    def violation(self, what: str) -> ScheduleViolation:
        """An error with what happened before it and how to repeat it."""
        lines = "\n  ".join(self._trace)
        return ScheduleViolation(f"{what}\n  strategy {self.strategy}, seed {self.seed}; before it:\n  {lines}")

    def _ready(self) -> list[SimulatedStream]:
        return [stream for stream in self.streams_alive if stream.can_run]

    def _run(self, stream: SimulatedStream) -> None:
        self.num_run += 1
        self._is_inside = True
        try:
            stream.run_head()
        finally:
            self._is_inside = False
        self.check_races()


def _is_reached(event: Event) -> bool:
    return event.reached if isinstance(event, SimulatedEvent) else event.done()


def _name(segment: Segment) -> str:
    function = getattr(segment, "func", segment)
    return str(getattr(function, "__name__", function)).lstrip("_")
