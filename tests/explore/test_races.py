"""Whole workloads under the race detector: no two accesses that nothing orders."""

import pytest

from tests.doubles.strategies import Strategy
from tests.explore.exploring import STRATEGIES
from tests.explore.run import Run
from tests.explore.workload import Workload
from tests.selecting import first, full


def expect_no_race(seeds: range, strategies: tuple[Strategy, ...] = STRATEGIES) -> None:
    """No race in any of them."""
    for seed in seeds:
        strategy = strategies[seed % len(strategies)]
        run = Run(Workload.random(seed), strategy, seed, detect=True).run()
        assert run.simulation.detector is not None and run.simulation.detector.num_seen > 500


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(4, range(10)))
def test_ten_workloads_have_no_race(seed: int) -> None:
    expect_no_race(range(seed, seed + 1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, range(12), num_broad=4))
def test_copies_to_host_memory_and_back_have_no_race(seed: int) -> None:
    run = Run(Workload.spilling(seed), STRATEGIES[seed % len(STRATEGIES)], seed, detect=True).run()
    assert run.num_spills > 0


@pytest.mark.parametrize("part", [*map(full, range(6))])
def test_sixty_workloads_have_no_race(part: int) -> None:
    expect_no_race(range(100 + part * 10, 110 + part * 10))
