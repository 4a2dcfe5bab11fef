"""Host threads as a schedule: whoever drives a deployment waits for them, not for a time."""

import threading
from contextlib import closing

import pytest
import torch

from protocol.messages_group import StepShape
from tests.doubles.strategies import Strategy
from tests.doubles.streams_simulated import ScheduleViolation
from tests.explore import threads
from tests.explore.run import Run
from tests.explore.threads import HesitantStream, Threads
from tests.explore.workload import Workload


@pytest.mark.slow
def test_slow_threads_make_no_step_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a deployment on a slow machine would seem to hang: it may take so many steps."""
    monkeypatch.setattr(threads, "PAUSES_S", (0.05,))
    with closing(Threads(0)) as schedule:
        run = Run(Workload.random(0, num_requests=2), Strategy.RANDOM, 0, schedule=schedule).run()
    assert 10 < run.num_steps < 100


def test_ranks_that_differ_are_told_with_both_tags_though_one_waits_for_the_other() -> None:
    step = StepShape(1, (2, 2))
    with closing(Threads(0)) as threads:
        group = threads.group(2)
        streams = [threads.streams()[0] for _ in range(2)]
        for stream, width in zip(streams, (4, 5), strict=True):
            assert isinstance(stream, HesitantStream)
            rank = group.join(stream)
            given_PE = torch.zeros(2, width)
            stream.launch([lambda rank=rank, given_PE=given_PE: rank.gather(given_PE, step)])
            stream.record()
        while not threads.found:
            threads.run_one()
        with pytest.raises(ScheduleViolation, match=r"rank \d enters gather \(2, .\).* rank \d has entered gather"):
            threads.point()
    assert not any(thread.name.startswith("forward 0/") for thread in threading.enumerate())
