"""Workers that sleep until they are lost return as other instances: no wrong token, no page lost, nothing older than a
flush."""

from collections import Counter

import pytest

from tests.explore_handoff.scenario import Scenario
from tests.explore_handoff.world import World

SEEDS = 6
DONE = {"sleeps", "returned", "flush", "found at prefill", "found at decode"}  # each must really happen


def explore(seeds: range) -> Counter[str]:
    """What happened in the worlds of these seeds."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        world = World(Scenario.sleeping(seed))
        world.run()
        happened += world.story.happened
        happened["done"] += world.outcomes["done"]
        happened["asked"] += len(world.clients)
    return happened


def test_workers_that_sleep_return() -> None:
    happened = explore(range(SEEDS))
    assert not DONE - set(happened), "the exploration has lost its point"
    assert happened["returned"] >= SEEDS and happened["done"] > 0.7 * happened["asked"]


@pytest.mark.slow
def test_workers_that_sleep_return_in_more_worlds() -> None:
    happened = explore(range(SEEDS, 16))
    assert not DONE - set(happened)


@pytest.mark.full
@pytest.mark.timeout(1800)  # two minutes on an idle core
def test_workers_that_sleep_return_in_many_worlds() -> None:
    happened = explore(range(1000, 1070))
    assert not DONE - set(happened)


def test_a_returned_worker_is_the_same_process_with_the_same_planner() -> None:
    world = World(Scenario.sleeping(0))
    planners = {worker.process: (worker.worker_id, worker.planner) for worker in world.workers}
    world.run()
    returned = [worker for worker in world.workers if worker.process in planners and worker.instance != worker.process]
    assert returned, "nobody has returned"
    for worker in returned:
        assert (worker.worker_id, worker.planner) == planners[worker.process]
        assert worker.core.planner is worker.planner
