"""Whole workloads with a draft: the scheduler reads lengths behind their publish, and a dropped wait never passes."""

from dataclasses import replace
from typing import cast

import pytest

from tests.doubles.strategies import Strategy
from tests.doubles.streams_simulated import ScheduleViolation, SimulatedStream
from tests.explore.exploring import STRATEGIES
from tests.explore.run import Run
from tests.explore.workload import Workload
from tests.selecting import first

SEEDS = (0, 6, 12)  # a unified worker


def run_of(seed: int, strategy: Strategy, detect: bool = False, tree: tuple[int, int] = (1, 0)) -> Run:
    """A workload with a draft, which always proposes."""
    workload = replace(Workload.random(seed).with_draft(seed), num_steps=3, varied_steps=None, tree=tree)
    return Run(workload, strategy, seed, detect=detect)


class Deaf(Run):
    """The mutant: schedule streams wait for nobody."""

    def start(self) -> None:
        """A deployment without load."""
        super().start()
        for worker in self.cluster.workers:
            schedule = cast(SimulatedStream, self.cluster.executor(worker).device.schedule)
            vars(schedule)["wait"] = lambda event: None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("strategy", [strategy for strategy in STRATEGIES if strategy is not Strategy.IN_ORDER])
def test_a_dropped_wait_is_noticed_every_time(strategy: Strategy, seed: int) -> None:
    run = run_of(seed, strategy)
    with pytest.raises(ScheduleViolation, match="has no length: none was published"):
        Deaf(run.workload, strategy, seed).run()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lengths_of_a_draft_change_no_token(strategy: Strategy) -> None:
    run = run_of(SEEDS[0], strategy)
    run.run()
    assert run.simulation.num_run > 20


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "seed,tree",
    first(2, [(SEEDS[0], (1, 0)), (SEEDS[0], (2, 7)), *((seed, (1, 0)) for seed in SEEDS[1:])], num_broad=1),
)
def test_no_buffer_of_the_future_map_has_a_race(seed: int, tree: tuple[int, int], strategy: Strategy) -> None:
    run = run_of(seed, strategy, detect=True, tree=tree)
    run.run()
    detector = run.simulation.detector
    assert detector is not None and detector.num_seen > 500
    names = {name.split(" ", 2)[2] for _, name in detector._names}
    assert {"new_seq_lens_buf", "topk_index_NK buffer", "hidden_NE buffer", "owners of the hidden_NE buffer"} <= names
    assert (tree[0] > 1) == ("topk_p_NK buffer" in names)
