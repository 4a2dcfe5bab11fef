"""What a request or a folder may say without harm: endings outside the vocabulary, a vanishing temperature."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.sampler import sample
from protocol.messages_gateway import SamplingParams
from scheduler.execution.sampling_columns import SamplingColumns
from tests.scheduler.building import CPU, draw


@pytest.mark.parametrize("outside", [5, 10**6, -1, 2**63])
def test_an_ending_outside_the_vocabulary_bans_nothing(outside: int) -> None:
    params = SamplingParams(max_tokens=4, min_tokens=2, temperature=0.0, eos_token_ids=(outside, 3))
    draws = [draw(1, params, until=1 + 2), draw(2, replace(params, min_tokens=0), until=1)]
    inputs = SamplingColumns.of(draws, CPU).input(torch.tensor([1, 1]), np.array([1, 1]))
    logits_LV = torch.tensor([[0.0, 0, 1, 2, 3], [0.0, 0, 1, 2, 3]])
    assert sample(logits_LV, inputs).tolist() == [4, 4]
    logits_LV = torch.tensor([[0.0, 0, 1, 2, 0], [0.0, 0, 1, 2, 0]])
    assert sample(logits_LV, inputs).tolist() == [2, 3]


@pytest.mark.parametrize("temperature", [1e-20, 1e-30, 1e-37, 1e-40, 1e-300])
def test_a_vanishing_temperature_is_greedy(temperature: float) -> None:
    draws = [draw(1, SamplingParams(max_tokens=4, temperature=temperature, seed=seed)) for seed in range(8)]
    ones = np.ones(8, dtype=np.int64)
    inputs = SamplingColumns.of(draws, CPU).input(torch.from_numpy(ones), ones)
    logits_LV = torch.tensor([[9.0, 30, 20, -5, 29.5]]).repeat(8, 1)
    assert sample(logits_LV, inputs).tolist() == [1] * 8
