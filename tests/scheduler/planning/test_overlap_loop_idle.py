"""A rank that other ranks call, in every role: it launches nothing where it has no work, and nothing else changes."""

import random
from dataclasses import replace
from typing import Any

import pytest

from scheduler.planning.overlap_loop import OverlapLoop
from tests.decode.driving import VOCAB, greedy, make_cluster
from tests.doubles.hash_model import FakeRunner
from tests.doubles.strategies import Strategy
from tests.doubles.streams_simulated import Simulation
from tests.scheduler.grouped import Answered, Counting
from worker.policies import DEFAULTS

IN_TURNS = replace(DEFAULTS, enable_mixed_chunk=False)
ROLES: dict[str, tuple[str, dict[str, Any]]] = {
    "prefill and decode": ("1P1D", {}),
    "decode, short of pages": ("1P1D", {"num_pages": 18}),
    "unified": ("1U", {}),
    "unified, in turns": ("1U", {"policies": IN_TURNS}),
    "unified, short of pages": ("1U", {"num_pages": 18}),
    "unified with a draft": ("1U", {"runner": FakeRunner(vocab_size=VOCAB, context_length=256, draft_seed=1)}),
    "unified without overlap": ("1U", {"overlap": False}),
}
NAMES = {"first": 9, "second": 33, "third": 21}


class Group:
    """A cluster of which each worker is rank 0 of a group of its own, whose other rank may call."""

    def __init__(self, topology: str, **options: Any) -> None:
        self.cluster = make_cluster(topology, **options)
        self.agreements = []
        for worker in self.cluster.workers:
            executor = self.cluster.executor(worker)
            executor.agreement = Answered()
            self.agreements.append(executor.agreement)

    def call(self) -> None:
        """The other rank of each group announces the next step, unless it has."""
        for agreement in self.agreements:
            if not agreement.missing:
                agreement.call()

    @property
    def num_idle(self) -> list[int]:
        return [worker.planner.num_idle for worker in self.cluster.workers]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("role", ROLES)
def test_idle_launches_between_others_change_nothing(role: str, seed: int) -> None:
    """Calls come at any time: before the first request, between all launches, behind the last one."""
    topology, options = ROLES[role]
    num_tokens = 24 if "short" in role else 8
    rng, simulation = random.Random(seed), Simulation(Strategy.RANDOM, seed)
    group = Group(topology, streams=simulation.streams, **options)
    cluster = group.cluster

    def step() -> bool:
        if rng.random() < 0.3 and (not cluster.at_rest() or min(group.num_idle) < 6):
            group.call()
        return cluster.step() or simulation.run_one()

    for name, length in NAMES.items():
        for _ in range(rng.randrange(30)):
            step()
        cluster.ask(name, length, greedy(num_tokens))
    while step() or not cluster.at_rest() or min(group.num_idle) < 6:
        pass

    cluster.expect_end()
    assert min(group.num_idle) > 3, group.num_idle
    assert bool(cluster.num_retracted) == ("short" in role)
    launches = [worker.planner.num_launches for worker in cluster.workers]
    assert launches == [agreement.step - 1 for agreement in group.agreements]
    cluster.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_a_rank_that_is_not_called_launches_nothing(overlap: bool) -> None:
    group = Group("1U", streams=Simulation(Strategy.EARLY, 0).streams, overlap=overlap)
    (worker,) = group.cluster.workers
    assert not any(group.cluster.step() for _ in range(9)) and worker.planner.num_launches == 0
    group.call()
    while group.cluster.step():
        pass
    assert worker.planner.num_launches == worker.planner.num_idle == 1
    assert not worker.planner.is_called and not worker.busy


def test_a_step_that_hears_of_a_call_says_that_there_is_more_to_do() -> None:
    """So the worker does not sleep before it answers."""
    group = Group("1U", streams=Simulation(Strategy.EARLY, 0).streams)
    (worker,) = group.cluster.workers
    group.call()
    loop: OverlapLoop = worker.loop
    assert loop.step() and worker.planner.num_launches == 0 and worker.planner.is_called
    assert loop.step() and worker.planner.num_launches == 1


def test_launches_that_succeed_without_requests_are_no_sign_of_health() -> None:
    """A worker whose every request fails is at fault, however often it was idle in between."""
    counting = Counting()
    runner = FakeRunner(vocab_size=VOCAB, context_length=256, before_forward=counting)
    group = Group("1U", runner=runner, streams=Simulation(Strategy.EARLY, 0).streams)
    cluster, (worker,) = group.cluster, group.cluster.workers
    group.agreements[0].size = 1  # or the first failure would end the group
    for number, name in enumerate(("a", "b", "c")):
        assert not worker.loop.broken
        counting.failing = (len(counting.inputs) + 1,)
        cluster.ask(name, 5, greedy(3))
        cluster.run()
        assert name in cluster.failures
        for _ in range(2):
            assert worker.planner.launch() in worker.planner.in_flight
            cluster.run()
        assert worker.planner.num_launches == 3 * (number + 1)
    assert worker.loop.broken.startswith("3 launches in a row have failed without a request in common")
