"""A worker that decodes, timed from within: steps are counted by what has completed."""

from collections.abc import Sequence
from typing import Any

import pytest

from bench.step.decoding import AtOnce, Decoding, Plan, executor_of
from bench.step.kinds import GREEDY, GUESTS, KINDS, Kind
from scheduler.execution.streams import InlineStream, Segment
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner

FORWARD_S, HOST_S = 0.25, 0.0625


class Device(InlineStream):
    """Launches take their time one after the other, beside the host; `idle` waits for the oldest that is under way."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.ends: list[float] = []

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        self.clock.advance(HOST_S)
        super().launch(segments, *used)
        self.ends.append(max(self.clock.now(), *self.ends[-1:], 0.0) + FORWARD_S)

    def record(self) -> "Reached":
        return Reached(self.clock, self.ends[-1] if self.ends else 0.0)

    def replay(self, count: int) -> list[float]:
        return [FORWARD_S] * count

    def idle(self) -> None:
        later = [end for end in self.ends if end > self.clock.now()]
        self.clock.advance(min(later) - self.clock.now() if later else 0.0)


class Reached:
    def __init__(self, clock: VirtualClock, at_s: float) -> None:
        self.clock, self.at_s = clock, at_s

    def done(self) -> bool:
        return self.clock.now() >= self.at_s

    def synchronize(self) -> None:
        self.clock.advance(max(0.0, self.at_s - self.clock.now()))


@pytest.mark.parametrize("overlap, step_s", [(True, FORWARD_S), (False, FORWARD_S + HOST_S)])
def test_a_step_takes_what_passes_between_two_completions(overlap: bool, step_s: float) -> None:
    """With overlap the host's part is hidden. What lies ready from the round before is not counted."""
    clock, plan = VirtualClock(), Plan(context=5, steps=4, rounds=3)
    stream = Device(clock)
    executor = executor_of(FakeRunner(), 2, plan.max_context, stream)
    decoding = Decoding.on(executor, stream, clock, overlap=overlap)
    decoding.start(2, plan.context, plan.num_tokens)
    for _ in range(plan.rounds):
        clock.advance(100.0)
        assert decoding.run(plan.steps) == step_s
        assert decoding.host_s == pytest.approx(plan.steps * HOST_S)
    assert decoding.worker.stats().running == 2, "nobody has ended: every step had the whole batch"


def test_what_launches_take_passes_no_time_on_their_streams_clock() -> None:
    clock = VirtualClock()
    stream = AtOnce(clock.now)
    start = stream.now()
    stream.launch([lambda: clock.advance(0.25), lambda: clock.advance(0.5)])
    clock.advance(7.0)
    stream.launch([lambda: clock.advance(1.0)])
    assert stream.now() - start == 7.0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_some_of_the_requests_may_be_of_a_kind(kind: Kind) -> None:
    """Each step has the whole batch, and the guests beside it."""
    clock, plan = VirtualClock(), Plan(context=5, steps=4, rounds=2)
    stream = AtOnce(clock.now)
    executor = executor_of(FakeRunner(), kind.num_requests(3), plan.max_context, stream)
    decoding = Decoding.on(executor, stream, stream, overlap=True)
    decoding.start(3, plan.context, plan.num_tokens, kind, num_of=2)
    for _ in range(plan.rounds):
        decoding.run(plan.steps)
    asked = [req.sampling for req in decoding.worker.planner.decodes()]
    assert decoding.num_running == 3 + (GUESTS if kind.joins else 0)
    assert sum(params == kind.params(plan.num_tokens) for params in asked[:3]) == (
        3 if kind is GREEDY or kind.joins else 2
    )
