"""A rank that other ranks call, in every role: it launches nothing where it has no work, and nothing else changes."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.decode.driving import VOCAB, greedy, make_cluster
from tests.doubles.hash_model import FakeRunner
from tests.doubles.strategies import Strategy
from tests.doubles.streams_simulated import Simulation
from tests.scheduler.grouped import Answered, Counting
from worker.policies import DEFAULTS

IN_TURNS = replace(DEFAULTS, enable_mixed_chunk=False)
ROLES: dict[str, tuple[str, dict[str, Any]]] = {
    "prefill and decode": ("1P1D", {}),
    "decode, short of pages": ("1P1D", {"num_pages": 17}),
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
            self.agreements.append(agreement := Answered())
            worker.planner.steps.agreement = agreement

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
        return cluster.turn() or simulation.run_one()

    for name, length in NAMES.items():
        for _ in range(rng.randrange(30)):
            step()
        cluster.ask(name, length, greedy(num_tokens))
    while step() or not cluster.at_rest() or min(group.num_idle) < 6:
        pass

    cluster.expect_end()
    assert min(group.num_idle) > 3, group.num_idle
    assert bool(cluster.num_preempted) == ("short" in role)
    launches = [worker.planner.num_launches for worker in cluster.workers]
    assert launches == [agreement.step - 1 for agreement in group.agreements]
    cluster.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_a_rank_that_is_not_called_launches_nothing(overlap: bool) -> None:
    group = Group("1U", streams=Simulation(Strategy.EARLY, 0).streams, overlap=overlap)
    (worker,) = group.cluster.workers
    assert not any(group.cluster.turn() for _ in range(9)) and worker.planner.num_launches == 0
    group.call()
    while group.cluster.turn():
        pass
    assert worker.planner.num_launches == worker.planner.num_idle == 1
    assert not worker.planner.steps.is_called and not worker.busy


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("num_in_flight", [0, 1, 2])
def test_a_rank_without_work_answers_a_call_in_the_same_turn_or_once_a_launch_is_over(
    num_in_flight: int, overlap: bool
) -> None:
    """Meanwhile it sleeps. When a launch is over, the turn that hears of it answers, too."""
    simulation = Simulation(Strategy.LATE, 0)
    group = Group("1U", streams=simulation.streams, overlap=overlap)
    (worker,), (agreement,), depth = group.cluster.workers, group.agreements, 2 if overlap else 1
    num_in_flight = min(num_in_flight, depth)
    for _ in range(num_in_flight):
        group.call()
        assert worker.loop.turn()
    group.call()
    assert worker.loop.turn() is (num_in_flight < depth)
    if num_in_flight == depth:
        assert agreement.missing == (0,) and not worker.loop.turn()
        while not worker.loop.turn():
            assert simulation.run_one()
    assert worker.planner.num_idle == num_in_flight + 1 and not agreement.missing
    group.cluster.run()


def test_launches_that_succeed_without_requests_are_no_sign_of_health() -> None:
    """A worker whose every request fails is at fault, however often it was idle in between."""
    counting = Counting()
    runner = FakeRunner(vocab_size=VOCAB, context_length=256, before_forward=counting)
    group = Group("1U", runner=runner, streams=Simulation(Strategy.EARLY, 0).streams)
    cluster, (worker,) = group.cluster, group.cluster.workers
    worker.planner.steps.agreement = None  # or the first failure would end the group
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
