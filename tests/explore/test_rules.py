"""Requests with logit rules: no schedule changes a token, wherever the tokens before it were computed.

Few tokens are allowed, so each rule that is forgotten, or read from another context, changes tokens.
"""

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from protocol.logit_rules import LogitRules
from tests.decode.driving import VOCAB
from tests.doubles.strategies import Strategy
from tests.explore.expected import expected
from tests.explore.run import Run
from tests.explore.workload import Arrival, Workload
from tests.ruling import with_rules

DRAFTS: dict[str, dict[str, Any]] = {
    "none": {},
    "chain": {"num_steps": 3},
    "tree": {"num_steps": 3, "tree": (3, 8)},
    "layers": {"num_steps": 2, "num_layers": 2},
    "varied": {"num_steps": 3, "varied_steps": 5},
}


def ruled(seed: int, workload: Workload) -> Workload:
    """All requests have rules that read their contexts; some go on from an earlier attempt."""
    rng, arrivals = random.Random(seed), list[Arrival]()
    for arrival in workload.arrivals:
        params = with_rules(rng, replace(arrival.params, eos_token_ids=(), min_tokens=0), VOCAB)
        assert params.rules is not None
        few = tuple(rng.sample(range(VOCAB), 4))
        rules = replace(params.rules, allowed_token_ids=few, bad_words=((few[0], few[1]),), frequency_penalty=0.5)
        params = replace(params, rules=rules)
        tokens, _ = expected(arrival.prompt, params, 0)
        num_replayed = min(rng.choice((0, 2)), len(tokens) - 1, len(arrival.prompt) - 1)
        alone = arrival.num_choices == 1
        arrivals.append(replace(arrival, params=params, num_replayed=num_replayed if alone else 0))
    return replace(workload, arrivals=tuple(arrivals))


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("topology", ("1U", "1P1D"))
def test_rules_hold_on_every_schedule(topology: str, draft: str) -> None:
    num_ended = 0
    for seed, strategy in enumerate((Strategy.LATE, Strategy.EARLY, Strategy.RANDOM)):
        workload = replace(Workload.random(seed, 6), topology=topology, failing=0.0, overlap=True)
        layers = DRAFTS[draft].get("num_layers", 1)
        largest = max(each.num_pages(workload.page_size, layers) for each in workload.arrivals)
        workload = replace(workload, num_pages=max(workload.num_pages, 1 + largest), **DRAFTS[draft])
        run = Run(ruled(seed, workload), strategy, seed)
        run.run()
        num_ended += sum(bool(answer.finish) for answer in run.cluster.answers.values())
    assert num_ended > 9


@pytest.mark.parametrize("seed", range(2))
def test_rules_hold_for_requests_that_give_way(seed: int) -> None:
    run = Run(ruled(seed, Workload.spilling(seed)), Strategy.RANDOM, seed)
    run.run()
    assert run.num_spills > 0


def test_rules_change_tokens() -> None:
    arrival = Workload.random(0).arrivals[0]
    plain = replace(arrival.params, rules=None, eos_token_ids=(), min_tokens=0, temperature=0.0, max_tokens=8)
    few = LogitRules(allowed_token_ids=(3, 5), bad_words=((3, 3), (5, 5)))
    tokens, _ = expected(arrival.prompt, replace(plain, rules=few), 0)
    assert set(tokens) == {3, 5} and all(one != other for one, other in pairwise(tokens))
    assert tokens != expected(arrival.prompt, plain, 0)[0]
