"""No schedule that the declared waits allow changes a token, loses a page, or hangs."""

from contextlib import closing

import pytest

from tests.doubles.clock import VirtualClock
from tests.doubles.strategies import Listed, Strategy, next_decisions
from tests.explore.exploring import STRATEGIES
from tests.explore.run import Run
from tests.explore.threads import Threads
from tests.explore.workload import Workload
from tests.mutants import mutant
from tests.selecting import first

NUM_SCHEDULES = 1000  # `make explore` runs as many as it is asked for
SLICES = 5  # of the thousand, so that they run side by side
SEEDS = -(-NUM_SCHEDULES // len(STRATEGIES) // SLICES)  # of each slice and strategy


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_schedules_change_no_token(strategy: Strategy) -> None:
    run = Run(Workload.random(1), strategy, 1).run()
    assert run.simulation.num_run > 20  # something was there to be scheduled


@pytest.mark.slow
@pytest.mark.parametrize("strategy", first(1, STRATEGIES, num_broad=2))
def test_kv_that_waits_in_host_memory_changes_no_token(strategy: Strategy) -> None:
    num_spills = 0
    for seed in range(4):
        run = Run(Workload.spilling(seed), strategy, seed).run()
        num_spills += run.num_spills
    assert num_spills > 4


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_schedules_that_notice_every_mutant_change_no_token(strategy: Strategy) -> None:
    """As many as `make mutants` runs to find one."""
    num_ended = 0
    for seed in range(mutant.SEEDS):
        run = Run(Workload.random(seed), strategy, seed).run()
        num_ended += sum(bool(answer.finish) for answer in run.cluster.answers.values())
    assert num_ended > 5 * mutant.SEEDS


@pytest.mark.parametrize("part", first(1, range(SLICES), num_broad=0))
@pytest.mark.parametrize("strategy", first(0, STRATEGIES, num_broad=2))
def test_a_thousand_schedules_change_no_token(strategy: Strategy, part: int) -> None:
    num_failed = num_left = num_ended = 0
    for seed in range(100 + part * SEEDS, 100 + (part + 1) * SEEDS):
        run = Run(Workload.random(seed), strategy, seed).run()
        num_failed += run.failures.num_failed
        num_left += len(run.left)
        num_ended += sum(bool(answer.finish) for answer in run.cluster.answers.values())
    assert num_failed and num_left and num_ended > 5 * SEEDS  # launches that fail, clients that leave, whole answers


@pytest.mark.slow
@pytest.mark.parametrize("part", first(1, range(4), num_broad=1))
def test_a_hundred_schedules_on_host_threads(part: int) -> None:
    for seed in range(part * 25, (part + 1) * 25):
        with closing(Threads(seed)) as threads:
            run = Run(Workload.random(seed), Strategy.RANDOM, seed, schedule=threads).run()
        assert run.num_steps > 10


def test_the_same_seed_gives_the_same_schedule() -> None:
    runs = [Run(Workload.random(5), Strategy.RANDOM, seed) for seed in (5, 5, 6)]
    for run in runs:
        run.run()
    traces = [str(run.simulation.violation("")).splitlines()[2:] for run in runs]
    assert traces[0] == traces[1] != traces[2]


def test_a_host_that_stands_still_for_hours_changes_no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()

    def hours_later() -> float:
        clock.advance(3600)
        return clock.now()

    monkeypatch.setattr("time.monotonic", hours_later)
    run = Run(Workload.random(1), Strategy.LATE, 1).run()
    assert len(run.workload.topology) == 4 and run.num_steps > 10  # prefill and decode: they have deadlines


@pytest.mark.full
def test_every_schedule_of_a_small_workload() -> None:
    """Depth first over the first decisions; later ones are taken as late as possible."""
    workload = Workload.random(1, num_requests=2)
    decisions: list[bool] | None = []
    tried = set()
    while decisions is not None:
        listed = Listed(decisions)
        Run(workload, Strategy.EXHAUSTIVE, 0, listed).run()
        tried.add(tuple(decisions))
        decisions = next_decisions(decisions, listed.num_asked, limit=7)
    assert len(tried) == 2**7
