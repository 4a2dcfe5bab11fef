"""What a request or a folder may say without harm: endings outside the vocabulary, a vanishing temperature."""

from dataclasses import replace

import pytest
import torch

from model.sampler import sample
from protocol.request import SamplingParams
from scheduler.req import Req
from scheduler.sampling_columns import SamplingColumns


@pytest.mark.parametrize("outside", [5, 10**6, -1, 2**63])
def test_an_ending_outside_the_vocabulary_bans_nothing(outside: int) -> None:
    params = SamplingParams(max_tokens=4, min_tokens=2, temperature=0.0, eos_token_ids=(outside, 3))
    reqs = [Req("r", 0, 0, (1,), params), Req("s", 0, 0, (1,), replace(params, min_tokens=0))]
    columns = SamplingColumns.of(reqs, torch.device("cpu"))
    inputs = columns.input(reqs, torch.tensor([1, 1]))
    logits_LV = torch.tensor([[0.0, 0, 1, 2, 3], [0.0, 0, 1, 2, 3]])
    assert sample(logits_LV, inputs).tolist() == [4, 4]
    logits_LV = torch.tensor([[0.0, 0, 1, 2, 0], [0.0, 0, 1, 2, 0]])
    assert sample(logits_LV, inputs).tolist() == [2, 3]


@pytest.mark.parametrize("temperature", [1e-20, 1e-30, 1e-37, 1e-40, 1e-300])
def test_a_vanishing_temperature_is_greedy(temperature: float) -> None:
    reqs = [Req("r", 0, 0, (1,), SamplingParams(max_tokens=4, temperature=temperature, seed=seed)) for seed in range(8)]
    columns = SamplingColumns.of(reqs, torch.device("cpu"))
    inputs = columns.input(reqs, torch.ones(8, dtype=torch.int64))
    logits_LV = torch.tensor([[9.0, 30, 20, -5, 29.5]]).repeat(8, 1)
    assert sample(logits_LV, inputs).tolist() == [1] * 8
