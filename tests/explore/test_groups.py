"""Groups of 2 to 4 ranks: no schedule changes a token, separates the ranks, or hangs."""

from contextlib import closing

import pytest

from tests.doubles.strategies import Strategy
from tests.explore.exploring import STRATEGIES
from tests.explore.run import Run
from tests.explore.threads import Threads
from tests.explore.workload import Workload
from tests.mutants import mutant
from tests.selecting import first

ON_THREADS = 8  # groups of each part


def explored(seed: int, strategy: Strategy, *, detect: bool = False) -> Run:
    """One workload with groups, to its end."""
    return Run(Workload.grouped(seed), strategy, seed, detect=detect).run()


@pytest.mark.parametrize(("seed", "strategy"), [*zip((0, 1, 6, 4, 9, 9), STRATEGIES, strict=True)])
def test_groups_change_no_token(seed: int, strategy: Strategy) -> None:
    run = explored(seed, strategy)
    assert run.groups is not None and run.groups.num_idle > 0


def test_a_rank_that_naps_when_all_is_at_rest_takes_what_has_come() -> None:
    """Frames of a cancelled transfer lay before it, and their credit was still due."""
    run = explored(456, Strategy.RANDOM)
    assert run.groups is not None and not any(any(group.naps_until.values()) for group in run.groups.by_kind.values())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_groups_that_notice_every_mutant_change_no_token(strategy: Strategy) -> None:
    """Some launches cannot be built, some forwards break their group, and most requests end all the same."""
    num_idle = num_restarts = num_unbuilt = num_ended = num_idle_with_experts = 0
    for seed in range(mutant.SEEDS):
        run = explored(seed, strategy)
        assert run.groups is not None
        num_idle += run.groups.num_idle
        num_idle_with_experts += run.groups.num_idle * run.workload.has_experts
        num_restarts += run.groups.num_restarts
        num_unbuilt += run.failures.num_unbuilt
        num_ended += sum(bool(answer.finish) for answer in run.cluster.answers.values())
    assert min(num_idle, num_idle_with_experts, num_restarts, num_unbuilt) > 0 and num_ended > 5 * mutant.SEEDS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_groups_have_no_race(seed: int) -> None:
    run = explored(seed, Strategy.RANDOM, detect=True)
    assert run.simulation.detector is not None and run.simulation.detector.num_seen > 500


@pytest.mark.slow
@pytest.mark.parametrize("part", first(1, range(4), num_broad=1))
def test_groups_on_host_threads_change_no_token(part: int) -> None:
    """Each rank's forwards run on a thread of its own, and meet those of the others in memory."""
    num_idle = num_restarts = num_ended = 0
    for seed in range(part * ON_THREADS, (part + 1) * ON_THREADS):
        with closing(Threads(seed)) as threads:
            run = Run(Workload.grouped(seed), Strategy.RANDOM, seed, schedule=threads).run()
        assert run.groups is not None
        num_idle += run.groups.num_idle
        num_restarts += run.groups.num_restarts
        num_ended += sum(bool(answer.finish) for answer in run.cluster.answers.values())
    assert min(num_idle, num_restarts) > 0 and num_ended > 5 * ON_THREADS
