"""Requests that ask for log-probabilities of their prompts: on every schedule each prompt token has its own."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.doubles.strategies import Strategy
from tests.explore.run import Run
from tests.explore.workload import Workload, with_scored_prompts

DRAFTS: dict[str, dict[str, Any]] = {
    "none": {},
    "chain": {"num_steps": 3},
    "tree": {"num_steps": 3, "tree": (3, 8)},
    "layers": {"num_steps": 2, "num_layers": 2},
}


def scored(seed: int, workload: Workload) -> Workload:
    """Most requests ask, each for its own number of tokens. Prompts are cached, and cut into chunks."""
    asking = with_scored_prompts(random.Random(seed), workload, 1)
    return replace(asking, caches=True, chunk_size=(5, 9, 64)[seed % 3], failing=0.0)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("topology", ("1U", "1P1D"))
def test_prompts_on_every_schedule(topology: str, draft: str, overlap: bool) -> None:
    for seed, strategy in ((4, Strategy.LATE), (10, Strategy.RANDOM)):  # prompts of two families
        workload = replace(Workload.random(seed, 4), topology=topology, overlap=overlap)
        layers = DRAFTS[draft].get("num_layers", 1)
        largest = max(each.num_pages(workload.page_size, layers) for each in workload.arrivals)
        workload = replace(workload, num_pages=max(workload.num_pages, 1 + largest), **DRAFTS[draft])
        run = Run(scored(seed, workload), strategy, seed)
        run.run()
        assert any(prompt.found for prompt in run.cluster.prompts.values())


@pytest.mark.parametrize("seed", [0, 2])
def test_requests_that_give_way_ask_once(seed: int) -> None:
    workload = scored(seed, Workload.spilling(seed))
    run = Run(replace(workload, num_slots=0 if seed else workload.num_slots), Strategy.RANDOM, seed)
    run.run()
    assert run.num_spills > 0 or run.cluster.num_retracted > 0


def test_a_launch_in_which_nobody_asks_scores_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("log-probabilities were computed that no request asks for")

    monkeypatch.setattr("scheduler.execution.launches.scored_forward", forbidden)
    run = Run(replace(Workload.random(0, 6), failing=0.0), Strategy.RANDOM, 0)
    run.run()
    assert not run.cluster.failures


@pytest.mark.parametrize("seed", [1, 4])
def test_prompts_in_groups_of_ranks(seed: int) -> None:
    """One with a draft, and one without."""
    workload = replace(Workload.grouped(seed, 4), failing=0.0, unbuilt=0.0)
    run = Run(with_scored_prompts(random.Random(seed), workload, 1), Strategy.RANDOM, seed)
    run.run()
    assert any(prompt.found for prompt in run.cluster.prompts.values())
