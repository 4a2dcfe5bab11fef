"""Endings that lie outside the vocabulary (a folder may name such an EOS) ban nothing and fail nobody."""

from dataclasses import replace

import pytest
import torch

from model.sampler import sample
from protocol.request import SamplingParams
from scheduler.req import Req
from scheduler.sampling_columns import SamplingColumns, SamplingFlags


@pytest.mark.parametrize("outside", [5, 10**6, -1, 2**63])
def test_an_ending_outside_the_vocabulary_bans_nothing(outside: int) -> None:
    params = SamplingParams(max_tokens=4, min_tokens=2, temperature=0.0, eos_token_ids=(outside, 3))
    reqs = [Req("r", 0, 0, (1,), params), Req("s", 0, 0, (1,), replace(params, min_tokens=0))]
    columns = SamplingColumns.of(reqs, torch.device("cpu"))
    inputs = columns.input(reqs, SamplingFlags.of(reqs), torch.tensor([1, 1]))
    logits_LV = torch.tensor([[0.0, 0, 1, 2, 3], [0.0, 0, 1, 2, 3]])
    assert sample(logits_LV, inputs).tolist() == [4, 4]
    logits_LV = torch.tensor([[0.0, 0, 1, 2, 0], [0.0, 0, 1, 2, 0]])
    assert sample(logits_LV, inputs).tolist() == [2, 3]
