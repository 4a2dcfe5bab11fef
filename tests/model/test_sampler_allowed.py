"""Masks of grammars in the sampler."""

import math

import pytest
import torch

from model.logprobs import LogprobRows
from model.sampler import Sampled, sample_scored
from model.sampling_input import (
    NOT_A_TOKEN,
    NOTHING_LEFT,
    AllowedTokens,
    AskingRows,
    Banned,
    ParamColumns,
    SamplingInput,
)

V = 70
INF = float("inf")


def drawn(
    logits_LV: torch.Tensor, allowed: dict[int, list[int]], *, greedy: bool = True, ban: int | None = None
) -> list[int]:
    tokens: list[int] = scored(logits_LV, allowed, None, greedy=greedy, ban=ban).tokens_L.tolist()
    return tokens


def scored(
    logits_LV: torch.Tensor,
    allowed: dict[int, list[int]],
    asked: LogprobRows | None,
    *,
    greedy: bool = True,
    ban: int | None = None,
) -> Sampled:
    num_rows = logits_LV.shape[0]
    words = torch.zeros((len(allowed), V // 32 + 1), dtype=torch.int64)
    for place, tokens in enumerate(allowed.values()):
        for token in tokens:
            words[place, token // 32] |= 1 << token % 32
    masks = AllowedTokens(torch.tensor(list(allowed)), words.to(torch.int32))
    columns = [torch.full((num_rows,), 0.0 if greedy else 1.0), *(torch.zeros(num_rows, dtype=torch.int64),)]
    ones = torch.ones(num_rows)
    params = ParamColumns(columns[0], columns[1], ones, 0 * ones, columns[1], columns[1])
    bans = None if ban is None else Banned(torch.tensor([0]), torch.tensor([[ban]]), torch.tensor([100]))
    position_L = torch.arange(num_rows)
    asking = AskingRows(None, None, None, greedy)
    given = SamplingInput(params, asking, position_L, bans, logprobs=asked, allowed=masks)
    found: Sampled = sample_scored(logits_LV, given)
    return found


def test_only_allowed_tokens_are_drawn_in_rows_with_a_mask() -> None:
    logits_LV = torch.zeros((3, V))
    logits_LV[:, 40] = 9.0
    assert drawn(logits_LV, {0: [5, 69], 2: [31, 32, 63]}) == [5, 40, 31]
    logits_LV[:, 69] = 3.0
    assert drawn(logits_LV, {0: [5, 69], 2: [63, 64]}) == [69, 40, 63]
    assert set(drawn(torch.zeros((2, V)), {0: [69], 1: [32]}, greedy=False)) == {69, 32}
    assert logits_LV[0, 40] == 9.0, "the logits are not changed"


def test_rows_without_a_token_say_why() -> None:
    logits_LV = torch.zeros((4, V))
    logits_LV[1, 3] = float("nan")
    logits_LV[2] = -INF
    logits_LV[3, 3] = float("nan")
    for greedy in (True, False):
        tokens = drawn(logits_LV, {0: [7], 1: [3], 3: [5]}, greedy=greedy, ban=7)
        assert tokens == [NOTHING_LEFT, NOT_A_TOKEN, NOTHING_LEFT, 5]


@pytest.mark.parametrize("greedy", (True, False))
def test_log_probabilities_are_of_the_models_scores_or_of_what_the_mask_leaves(greedy: bool) -> None:
    logits_LV = torch.zeros((3, V))
    logits_LV[:2, 40] = 9.0
    raw_then_processed = torch.tensor([False, True, True])
    asked = LogprobRows((0, 1, 2), torch.arange(3), raw_then_processed, 0)
    found = scored(logits_LV, {0: [5], 1: [5], 2: [7]}, asked, greedy=greedy, ban=None)
    assert found.tokens_L.tolist() == [5, 5, 7] and found.logprobs_NW is not None
    raw = -math.log(V - 1 + math.exp(9.0))
    assert found.logprobs_NW[:, 0].contiguous().view(torch.float32).tolist() == pytest.approx([raw, 0.0, 0.0])
    assert found.logprobs_NW[:, 1].tolist() == [2, 1, 1], "ranks"
