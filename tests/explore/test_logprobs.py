"""Requests that ask for log-probabilities: on every schedule each token has its own, wherever it was drawn."""

import random
from dataclasses import replace
from typing import Any

import pytest

from protocol.logprobs import LogprobsAsked
from tests.doubles.strategies import Strategy
from tests.explore.run import Run
from tests.explore.workload import Workload

DRAFTS: dict[str, dict[str, Any]] = {
    "none": {},
    "chain": {"num_steps": 3},
    "tree": {"num_steps": 3, "tree": (3, 8)},
    "layers": {"num_steps": 2, "num_layers": 2},
}


def asking(seed: int, workload: Workload) -> Workload:
    """Most requests ask, each for its own number of tokens; hot ones, so that rows differ."""
    rng = random.Random(seed)
    asked = [rng.choice((None, LogprobsAsked(4), LogprobsAsked(1), LogprobsAsked(2, True))) for _ in workload.arrivals]
    arrivals = [
        replace(each, params=replace(each.params, eos_token_ids=(), min_tokens=0, logprobs=wanted))
        for each, wanted in zip(workload.arrivals, asked, strict=True)
    ]
    return replace(workload, arrivals=tuple(arrivals))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("topology", ("1U", "1P1D"))
def test_logprobs_on_every_schedule(topology: str, draft: str, overlap: bool) -> None:
    for seed, strategy in enumerate((Strategy.LATE, Strategy.RANDOM)):
        workload = replace(Workload.random(seed, 6), topology=topology, failing=0.0, overlap=overlap)
        layers = DRAFTS[draft].get("num_layers", 1)
        largest = max(each.num_pages(workload.page_size, layers) for each in workload.arrivals)
        workload = replace(workload, num_pages=max(workload.num_pages, 1 + largest), **DRAFTS[draft])
        run = Run(asking(seed, workload), strategy, seed)
        run.run()
        assert any(answer.logprobs for answer in run.cluster.answers.values())


@pytest.mark.parametrize(("layers", "seed"), [(0, 0), (0, 1), (2, 2), (3, 1), (3, 6)])
def test_logprobs_of_requests_that_give_way(seed: int, layers: int) -> None:
    """With three layers, on these seeds, a launch draws outputs once more and new ones in one run."""
    workload = Workload.spilling(seed)
    if layers:
        largest = max(each.num_pages(workload.page_size, layers) for each in workload.arrivals)
        more = max(workload.num_pages, 1 + largest)
        workload = replace(workload, num_steps=layers, num_layers=layers, num_pages=more)
    run = Run(asking(seed, workload), Strategy.RANDOM, seed)
    run.run()
    assert run.num_spills > 0


def test_a_batch_in_which_nobody_asks_computes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("log-probabilities were computed that no request asks for")

    monkeypatch.setattr("model.sampler.score", forbidden)
    plain = asking(0, Workload.random(0, 6))
    arrivals = tuple(replace(each, params=replace(each.params, logprobs=None)) for each in plain.arrivals)
    run = Run(replace(plain, failing=0.0, arrivals=arrivals), Strategy.RANDOM, 0)
    run.run()
    assert not run.cluster.failures
