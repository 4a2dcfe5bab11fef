"""Simulated streams: order, waits, weakly held inputs, and poison for those who do not wait for the schedule stream."""

import pytest
import torch
from torch import Tensor

from tests.doubles.strategies import Listed, Strategy, next_decisions
from tests.doubles.streams_simulated import ScheduleViolation, SimulatedEvent, SimulatedStream, Simulation

EAGER = (Strategy.EARLY, Strategy.EARLY_LATE_COPIES)


def streams(strategy: Strategy, seed: int = 0) -> tuple[SimulatedStream, SimulatedStream, Simulation]:
    """Forward, schedule."""
    simulation = Simulation(strategy, seed)
    return simulation.stream("forward"), simulation.stream("schedule", is_schedule=True), simulation


@pytest.mark.parametrize("strategy", Strategy)
def test_a_stream_runs_in_order(strategy: Strategy) -> None:
    forward, _, _ = streams(strategy)
    ran: list[int] = []
    for index in range(6):
        forward.launch([lambda index=index: ran.append(index)])
    forward.synchronize()
    assert ran == list(range(6))


def test_late_runs_nothing_until_the_host_waits() -> None:
    forward, _, simulation = streams(Strategy.LATE)
    ran: list[int] = []
    forward.launch([lambda: ran.append(0)])
    event = forward.record()
    assert not event.done() and ran == []
    assert simulation.run_one() and ran == [0] and not event.done()
    event.synchronize()
    assert event.done() and not simulation.run_one()


@pytest.mark.parametrize("strategy", EAGER)
def test_early_runs_at_once(strategy: Strategy) -> None:
    forward, _, _ = streams(strategy)
    ran: list[int] = []
    forward.launch([lambda: ran.append(0)])
    assert ran == [0]


def test_a_wait_is_kept_between_streams() -> None:
    simulation = Simulation(Strategy.EARLY, 0)
    first, second = simulation.stream("first"), simulation.stream("second")
    blocker = simulation.stream("blocker")
    gate = _never(blocker)
    first.wait(gate)
    ran: list[str] = []
    first.launch([lambda: ran.append("first")])
    second.wait(first.record())
    second.launch([lambda: ran.append("second")])
    assert ran == []
    gate.reached = True
    simulation.point()
    assert ran == ["first", "second"]


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("strategy", [*EAGER, Strategy.LATE, Strategy.RANDOM])
def test_a_launch_that_does_not_wait_for_the_schedule_stream_reads_nonsense(strategy: Strategy, waits: bool) -> None:
    forward, schedule, _ = streams(strategy)
    seen: list[list[int]] = []
    tensor = torch.tensor([7, 8])
    if waits:
        forward.wait(schedule.record())
    forward.launch([lambda each: seen.append(each.tolist())], tensor)
    forward.synchronize()
    assert seen == [[7, 8]] if waits else seen == [[0, 0]]
    assert tensor.tolist() == [7, 8]  # the host's own view is never disturbed


@pytest.mark.parametrize("strategy", [*EAGER, Strategy.LATE, Strategy.RANDOM])
def test_one_wait_covers_two_launches_of_the_same_inputs(strategy: Strategy) -> None:
    """A speculative launch is two, with an event between them."""
    forward, schedule, _ = streams(strategy)
    seen: list[list[int]] = []
    tensor, other = torch.tensor([7]), torch.tensor([8])
    forward.wait(schedule.record())
    for _ in range(2):
        forward.launch([lambda each: seen.append(each.tolist())], tensor)
    forward.launch([lambda *each: seen.append([one.item() for one in each])], tensor, other)  # waits for no record
    forward.synchronize()
    assert seen == [[7], [7], [0, 0]]


def test_what_nobody_keeps_alive_is_gone() -> None:
    forward, _, _ = streams(Strategy.LATE)

    def enqueue() -> None:
        forward.launch([lambda each: None], torch.tensor([1]))

    enqueue()
    with pytest.raises(ScheduleViolation, match=r"(?s)nobody keeps alive.*strategy late, seed 0"):
        forward.synchronize()


def test_results_reach_the_host_with_their_copy() -> None:
    forward, _, simulation = streams(Strategy.EARLY_LATE_COPIES)
    results: list[Tensor] = []
    forward.launch([lambda: results.append(forward.to_host(torch.tensor([5])))])
    copied = forward.record()
    with pytest.raises(ScheduleViolation, match="before their copy has run"):
        forward.read_host(results[0])
    copied.synchronize()
    assert forward.read_host(results[0]) == [5]
    assert not simulation.run_one()


def test_a_mark_is_seen_later_than_its_segment() -> None:
    forward, _, simulation = streams(Strategy.LATE)
    marks = []
    forward.launch([lambda: marks.append(forward.mark())])
    simulation.run_one()
    assert not marks[0].done()
    simulation.run_one()
    assert marks[0].done()


def test_waiting_for_ever_is_told() -> None:
    _, _, simulation = streams(Strategy.LATE)
    event = _never(simulation.stream("empty"))
    with pytest.raises(ScheduleViolation, match="waits for ever"):
        event.synchronize()


def test_decisions_are_tried_depth_first_and_end() -> None:
    tried, decisions = [], [False]
    found: list[bool] | None = decisions
    queue, _, _ = streams(Strategy.LATE)
    while found is not None:
        tried.append(tuple(found))
        listed = Listed(found)
        for _ in range(2):
            listed.more(queue)
        found = next_decisions(found, listed.num_asked, limit=2)
    assert tried == [(False,), (False, True), (True,), (True, True)]


def _never(stream: SimulatedStream) -> SimulatedEvent:
    return SimulatedEvent(stream.simulation, "an event that nobody reaches")
