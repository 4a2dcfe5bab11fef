"""No schedule that the declared waits allow changes a token, loses a page, or hangs."""

import pytest

from scheduler.strategies import Listed, Strategy, next_decisions
from tests.explore.workload import Run, Workload

SAMPLED = (Strategy.IN_ORDER, Strategy.LATE, Strategy.EARLY, Strategy.EARLY_LATE_COPIES, Strategy.RANDOM)


@pytest.mark.parametrize("strategy", SAMPLED)
def test_schedules_change_no_token(strategy: Strategy) -> None:
    for seed in range(4):
        run = Run(Workload.random(seed), strategy, seed)
        run.run()
        assert run.simulation.num_run > 20  # something was there to be scheduled


def test_the_same_seed_gives_the_same_schedule() -> None:
    runs = [Run(Workload.random(5), Strategy.RANDOM, seed) for seed in (5, 5, 6)]
    for run in runs:
        run.run()
    traces = [str(run.simulation.violation("")).splitlines()[2:] for run in runs]
    assert traces[0] == traces[1] != traces[2]


@pytest.mark.slow
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
