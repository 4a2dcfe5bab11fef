"""Host threads as a schedule: whoever drives a deployment waits for them, not for a time."""

import pytest

from tests.doubles.strategies import Strategy
from tests.explore import threads
from tests.explore.run import Run
from tests.explore.threads import Threads
from tests.explore.workload import Workload


@pytest.mark.slow
def test_slow_threads_make_no_step_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a deployment on a slow machine would seem to hang: it may take so many steps."""
    monkeypatch.setattr(threads, "PAUSES_S", (0.05,))
    run = Run(Workload.random(0, num_requests=2), Strategy.RANDOM, 0, schedule=Threads(0))
    run.run()
    assert 10 < run.num_steps < 100
