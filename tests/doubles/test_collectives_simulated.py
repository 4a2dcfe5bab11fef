"""Simulated collectives: a stream waits until all ranks have entered; ranks that differ are told at once."""

from collections.abc import Callable

import pytest
import torch

from protocol.messages_group import StepShape
from tests.doubles.collectives_simulated import SimulatedCollectives, SimulatedGroup
from tests.doubles.strategies import Strategy
from tests.doubles.streams_simulated import ScheduleViolation, Simulation

STEP = StepShape(1, (2, 3))


def two_ranks() -> tuple[Simulation, list[SimulatedCollectives]]:
    """Two ranks whose streams run as soon as they can."""
    simulation = Simulation(Strategy.EARLY, 0)
    group = SimulatedGroup(2)
    return simulation, [group.join(simulation.stream(f"rank {rank}")) for rank in range(2)]


def layer(rank: SimulatedCollectives, step: StepShape = STEP, width: int = 4) -> Callable[[], None]:
    """A segment that enters a gather and an exchange."""

    def compute() -> None:
        parts_RPE = rank.gather(torch.zeros((step.padded, width)), step)
        assert parts_RPE.shape == (2, step.padded, width)
        assert rank.exchange(parts_RPE, step).shape == parts_RPE.shape

    return compute


def test_a_stream_waits_until_every_rank_has_entered() -> None:
    _, (first, second) = two_ranks()
    first.group.streams[0].launch([layer(first)])
    over = first.group.streams[0].record()
    assert not over.done()
    assert first.group.missing() == (
        "rank 1 has not entered gather (3, 4), call 0 of step 1, eagerly: it is at the end of rank 1"
    )
    first.group.streams[1].launch([layer(second)])
    assert over.done() and not first.group.missing()


def test_ranks_in_different_steps_are_told_with_both_tags() -> None:
    simulation, (first, second) = two_ranks()
    first.group.streams[0].launch([layer(first)])
    said = r"rank 1 enters gather \(3, 4\), call 0 of step 2.* rank 0 has entered gather \(3, 4\), call 0 of step 1"
    with pytest.raises(ScheduleViolation, match=said):
        first.group.streams[1].launch([layer(second, StepShape(2, (2, 3)))])
    with pytest.raises(ScheduleViolation, match=said):  # a launch may have caught the first one
        simulation.point()


def test_a_rank_gets_from_every_rank_what_it_has_computed_for_itself() -> None:
    _, (_, second) = two_ranks()
    came: list[torch.Tensor] = []
    parts_RPE = torch.arange(12.0).view(2, 3, 2)

    def compute() -> None:
        came.extend((second.gather(parts_RPE[0], STEP), second.exchange(parts_RPE, STEP)))

    second.group.streams[1].launch([compute])
    assert torch.equal(came[0], torch.stack([parts_RPE[0]] * 2))
    assert torch.equal(came[1], torch.stack([parts_RPE[1]] * 2))


@pytest.mark.parametrize(
    ("step", "width", "said"),
    [
        (STEP, 5, r"rank 1 enters gather \(3, 5\).* rank 0 has entered gather \(3, 4\)"),
        (StepShape(1, (2, 3), graphs=True), 4, "step 1, by a graph; rank 0 .* step 1, eagerly"),
    ],
)
def test_ranks_that_differ_in_shape_or_way_are_told(step: StepShape, width: int, said: str) -> None:
    _, (first, second) = two_ranks()
    first.group.streams[0].launch([layer(first)])
    with pytest.raises(ScheduleViolation, match=said):
        first.group.streams[1].launch([layer(second, step, width)])


def test_a_rank_enters_no_step_before_the_others_have_entered_the_one_before() -> None:
    _, (first, second) = two_ranks()
    for number in (1, 2):
        first.group.streams[0].launch([layer(first, StepShape(number, (1, 1)))])
    assert [(tag.step, tag.call) for tag in first.group.logs[0]] == [(1, 0), (1, 1)]
    assert first.group.num_calls(0, 1) == 2 and first.group.num_calls(1, 1) == 0
    first.group.streams[1].launch([layer(second, StepShape(1, (1, 1)))])
    assert first.group.num_calls(0, 2) == 2
