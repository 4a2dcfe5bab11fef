"""The forward stream of a rank in virtual time: behind each forward it waits for the other ranks."""

import random
from collections.abc import Callable

import pytest
import torch

from protocol.messages_group import StepShape
from tests.doubles.collectives_simulated import SimulatedGroup
from tests.explore_handoff.agenda import Agenda
from tests.explore_handoff.compute_ranks import RankStream
from tests.explore_handoff.processes import Process
from tests.explore_handoff.story import Story

PACE_S = 0.1
STEP = StepShape(1, (2, 3))


class Ranks:
    """Two, whose forwards enter a gather. `ran` has what each has run."""

    def __init__(self) -> None:
        self.agenda, self.group = Agenda(), SimulatedGroup(2)
        self.hurt: list[str] = []
        self.ran: list[str] = []
        self.hosts = [Process(f"rank {rank}") for rank in range(2)]
        streams = self.group.streams
        of_world = self.agenda, Story()
        self.streams = [
            RankStream(*of_world, host, random.Random(0), PACE_S, streams, self.hurt.append)  # type: ignore[arg-type]
            for host in self.hosts
        ]
        self.collectives = [self.group.join(stream) for stream in self.streams]

    def launch(self, rank: int, width: int = 4) -> None:
        """A forward, and the draw of its tokens."""
        self.streams[rank].launch([self._compute(rank, width), lambda: self.ran.append(f"draw {rank}")])

    def _compute(self, rank: int, width: int) -> Callable[[], None]:
        def compute() -> None:
            self.ran.append(f"compute {rank}")
            self.collectives[rank].gather(torch.zeros(STEP.padded, width), STEP)

        return compute

    def run(self) -> None:
        """Until nothing is due."""
        while self.agenda._due:
            self.agenda.step()


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


def test_a_launch_goes_on_when_all_ranks_have_computed(ranks: Ranks) -> None:
    first, second = ranks.streams
    ranks.launch(0)
    over = first.record()
    ranks.run()
    assert ranks.ran == ["compute 0"] and not over.done()
    assert first.doing == "gather 0 of step 1" and second.stands_at == "no launch of rank 1"
    assert ranks.hosts[0].num_wakes == 0

    ranks.launch(1)
    ranks.run()
    assert ranks.ran[:2] == ["compute 0", "compute 1"] and sorted(ranks.ran[2:]) == ["draw 0", "draw 1"]
    assert over.done() and not first.doing and ranks.hosts[0].num_wakes > 0


def test_a_launch_waits_for_the_one_before_it(ranks: Ranks) -> None:
    ranks.launch(0)
    before = ranks.streams[0].record()
    ranks.streams[0].launch([lambda: ranks.ran.append("copy")])
    ranks.run()
    assert ranks.ran == ["compute 0"]
    ranks.launch(1)
    while not before.done():
        assert "copy" not in ranks.ran
        ranks.agenda.step()
    ranks.run()
    assert ranks.ran[-1] == "copy"


def test_a_mark_behind_a_collective_waits_for_all_ranks(ranks: Ranks) -> None:
    marks = []
    stream = ranks.streams[0]

    def compute() -> None:
        marks.append(stream.mark())
        ranks.collectives[0].gather(torch.zeros(STEP.padded, 4), STEP)
        marks.append(stream.mark())

    stream.launch([compute, lambda: None])
    ranks.run()
    assert [mark.done() for mark in marks] == [True, False]
    ranks.launch(1)
    ranks.run()
    assert [mark.done() for mark in marks] == [True, True]


def test_ranks_that_differ_are_told_at_once_even_if_their_launch_catches_it(ranks: Ranks) -> None:
    ranks.launch(0)
    ranks.run()

    def compute() -> None:
        with pytest.raises(Exception, match="rank 1 enters gather"):
            ranks.collectives[1].gather(torch.zeros(STEP.padded, 5), STEP)

    ranks.streams[1].launch([compute, lambda: None])
    with pytest.raises(AssertionError, match=r"rank 1 enters gather \(3, 5\).* rank 0 has entered gather \(3, 4\)"):
        ranks.run()


def test_a_launch_that_hangs_holds_the_others_up_and_says_so(ranks: Ranks) -> None:
    ranks.streams[1].hangs = True
    ranks.launch(0)
    ranks.launch(1)
    ranks.run()
    assert ranks.ran == ["compute 0"] and ranks.hurt == ["a launch of rank 1 hangs"]
    assert ranks.group.missing() == (
        "rank 1 has not entered gather (3, 4), call 0 of step 1, eagerly: it is at launch 1 of rank 1, which hangs"
    )


def test_a_process_that_has_ended_computes_nothing(ranks: Ranks) -> None:
    ranks.launch(0)
    ranks.hosts[0].alive = False
    ranks.run()
    assert not ranks.ran and ranks.streams[0].stands_at == "the end of rank 0"
