"""A row of logits without a right token gets none, and its neighbours get theirs."""

import math
from typing import Any

import pytest
import torch

from model.sampler import sample
from model.sampling_input import NOT_A_TOKEN
from tests.model.driving import random_logits, sampling

pytestmark = pytest.mark.slow

NAN, INF = math.nan, math.inf
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.2},
    "banned": {"banned": (1,)},
    "banned-greedy": {"temperature": 0.0, "banned": (1,)},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("at", [0, 17, 39])
@pytest.mark.parametrize("value", [NAN, -NAN, INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_bad_score_spoils_its_row_and_no_other(rule: str, at: int, value: float, dtype: torch.dtype) -> None:
    good = random_logits(4, 40, seed=5).to(dtype)
    bad = good.clone()
    bad[2, at] = value
    rows = [{**RULES[rule], "seed": seed} for seed in range(4)]
    expected = sample(good, sampling(*rows)).tolist()
    expected[2] = NOT_A_TOKEN
    assert sample(bad, sampling(*rows)).tolist() == expected


@pytest.mark.parametrize("rule", ["greedy", "sampled", "top-k"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_row_of_nothing_but_nonsense(rule: str, value: float) -> None:
    assert sample(torch.full((2, 40), value), sampling(RULES[rule], RULES[rule])).tolist() == [NOT_A_TOKEN] * 2


def test_minus_infinity_beside_finite_scores_is_a_score() -> None:
    logits = torch.full((2, 40), -INF)
    logits[:, 7] = -1e30
    assert sample(logits, sampling({"temperature": 0.0}, {})).tolist() == [7, 7]
