"""Requests with log-probabilities: on every schedule each token has its own, wherever it was drawn."""

import random
from dataclasses import replace
from typing import Any

import pytest

from protocol.logprobs import LogprobsAsked
from tests.doubles.strategies import Strategy
from tests.explore.expected import expected, expected_scores
from tests.explore.run import Run
from tests.explore.workload import HOT, Arrival, Workload

DRAFTS: dict[str, dict[str, Any]] = {
    "none": {},
    "chain": {"num_steps": 3},
    "tree": {"num_steps": 3, "tree": (3, 8)},
    "layers": {"num_steps": 2, "num_layers": 2},
    "varied": {"num_steps": 3, "varied_steps": 5},
}


def asking(seed: int, workload: Workload) -> Workload:
    """Two of three requests ask, for one or two likeliest tokens. Some go on from an earlier attempt."""
    rng, arrivals = random.Random(seed), list[Arrival]()
    for place, arrival in enumerate(workload.arrivals):
        asked = LogprobsAsked(rng.choice((1, 2))) if place % 3 else None
        params = replace(arrival.params, rules=None, eos_token_ids=(), min_tokens=0, temperature=HOT, logprobs=asked)
        tokens, _ = expected(arrival.prompt, params, 0)
        num_replayed = min(rng.choice((0, 2)), len(tokens) - 1, len(arrival.prompt) - 1)
        alone = arrival.num_choices == 1
        arrivals.append(replace(arrival, params=params, num_replayed=num_replayed if alone else 0))
    return replace(workload, arrivals=tuple(arrivals))


def check_scores(run: Run) -> tuple[int, int]:
    """Each token of a request that asks has its own log-probabilities, and others have none. Returns how many have, and
    how many of these were not the likeliest."""
    num_scored, num_unlikely = 0, 0
    arrivals = {arrival.name: arrival for arrival in run.workload.arrivals}
    for (name, choice), answer in run.cluster.answers.items():
        arrival = arrivals[name]
        if arrival.params.logprobs is None:
            assert not answer.scores, f"{name} got logprobs that it did not ask for"
            continue
        outputs, _ = expected(arrival.prompt, arrival.params, choice)
        of_all = expected_scores(arrival.prompt, outputs)
        fresh = [seq for seq in sorted(answer.tokens) if seq >= arrival.num_replayed]
        assert [seq for seq in sorted(answer.scores) if seq >= arrival.num_replayed] == fresh
        for seq in fresh:
            logprob, rank, likeliest = of_all[seq]
            score = answer.scores[seq]
            assert score.logprob == pytest.approx(logprob, abs=1e-4), f"{name}/{choice} at {seq}"
            assert (min(score.rank, 2), score.top[0][0]) == (rank, likeliest), f"{name}/{choice} at {seq}"
            num_unlikely += rank > 1
        num_scored += len(fresh)
    return num_scored, num_unlikely


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("topology", ("1U", "1P1D"))
def test_each_token_has_its_own_on_every_schedule(topology: str, draft: str) -> None:
    num_scored = num_unlikely = 0
    for seed, strategy in enumerate((Strategy.LATE, Strategy.EARLY, Strategy.RANDOM)):
        workload = replace(Workload.random(seed, 6), topology=topology, failing=0.0, overlap=True)
        layers = DRAFTS[draft].get("num_layers", 1)
        largest = max(each.num_pages(workload.page_size, layers) for each in workload.arrivals)
        workload = replace(workload, num_pages=max(workload.num_pages, 1 + largest), **DRAFTS[draft])
        run = Run(asking(seed, workload), strategy, seed)
        run.run()
        found = check_scores(run)
        num_scored, num_unlikely = num_scored + found[0], num_unlikely + found[1]
    assert num_scored > 30 and num_unlikely > 5


@pytest.mark.parametrize("seed", range(2))
def test_each_token_has_its_own_where_requests_give_way(seed: int) -> None:
    run = Run(asking(seed, Workload.spilling(seed)), Strategy.RANDOM, seed)
    run.run()
    assert run.num_spills > 0 and check_scores(run)[0] > 0
