"""The sampler: transformers' masks, noise from (seed, choice, position) alone, rows that ignore their neighbours."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from model.sampler import SamplingInput, mask_logits, sample, uniform
from model.splitmix import mix, mix_int, signed

Row = dict[str, Any]
int64s = st.integers(-(2**63), 2**63 - 1)
rows = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        "top_k": st.sampled_from([0, 1, 3, 20, 1000]),
        "top_p": st.sampled_from([0.05, 0.5, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.05, 0.4, 1.0]),
        "seed": int64s,
        "choice": st.integers(0, 3),
        "position": st.integers(0, 1 << 20),
        "banned": st.sampled_from([(), (0,), (3, 5)]),
    }
)


def sampling(*rows: Row) -> SamplingInput:
    def column(name: str, default: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([row.get(name, default) for row in rows], dtype=dtype)

    top_k, top_p, min_p = (
        column("top_k", 0, torch.int64),
        column("top_p", 1.0, torch.float32),
        column("min_p", 0.0, torch.float32),
    )
    temperature = column("temperature", 1.0, torch.float32)
    return SamplingInput(
        temperature_L=temperature,
        top_k_L=top_k,
        top_p_L=top_p,
        min_p_L=min_p,
        seed_L=column("seed", 0, torch.int64),
        choice_L=column("choice", 0, torch.int64),
        position_L=column("position", 0, torch.int64),
        banned=tuple((index, row["banned"]) for index, row in enumerate(rows) if row.get("banned")),
        all_greedy=bool((temperature == 0).all()),
        any_top_k=bool((top_k > 0).any()),
        any_top_p=bool((top_p < 1).any()),
        any_min_p=bool((min_p > 0).any()),
    )


def random_logits(count: int, vocab: int, seed: int) -> Tensor:
    return torch.randn((count, vocab), generator=torch.Generator().manual_seed(seed)) * 3


@given(st.lists(rows, min_size=1, max_size=7), st.integers(0, 1000))
def test_a_row_does_not_depend_on_its_neighbours(batch: list[Row], seed: int) -> None:
    logits = random_logits(len(batch), 61, seed)
    together = sample(logits, sampling(*batch)).tolist()
    alone = [int(sample(logits[i : i + 1], sampling(row))[0]) for i, row in enumerate(batch)]
    assert together == alone


@given(rows, st.integers(0, 1000))
def test_a_sampled_token_is_one_that_the_masks_allow(row: Row, seed: int) -> None:
    logits = random_logits(1, 61, seed)
    before = logits.clone()
    token = int(sample(logits, sampling(row))[0])
    assert token not in row["banned"] and torch.equal(logits, before)
    banned = logits.clone()
    banned[0, list(row["banned"])] = float("-inf")
    if row["temperature"] == 0:
        assert token == int(banned.argmax())
    else:
        assert float(mask_logits(banned / row["temperature"], sampling(row))[0, token]) > float("-inf")


@pytest.mark.parametrize("top_k", [0, 1, 5, 500])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.3, 0.01])
@pytest.mark.parametrize("min_p", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_masks_equal_those_of_transformers(top_k: int, top_p: float, min_p: float, temperature: float) -> None:
    logits = random_logits(8, 200, top_k)
    ids = torch.zeros(8, 1, dtype=torch.int64)
    expected = TemperatureLogitsWarper(temperature)(ids, logits)
    if top_k:
        expected = TopKLogitsWarper(top_k)(ids, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(ids, expected)
    if min_p:
        expected = MinPLogitsWarper(min_p)(ids, expected)
    ours = mask_logits(logits / temperature, sampling(*[{"top_k": top_k, "top_p": top_p, "min_p": min_p}] * 8))
    assert torch.equal(ours.isinf(), expected.isinf())
    assert torch.allclose(ours[~ours.isinf()], expected[~expected.isinf()])


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [5.0, 5.0, 5.0, 5.0]])
    assert sample(logits, sampling({"temperature": 0.0}, {"temperature": 0.0})).tolist() == [1, 0]
    assert sample(logits, sampling({"temperature": 0.0}, {"temperature": 1.0})).tolist()[0] == 1
    assert sample(logits[:1], sampling({"temperature": 0.0, "banned": (1,)})).tolist() == [2]


def test_no_rows() -> None:
    tokens = sample(torch.zeros(0, 5), sampling())
    assert tokens.shape == (0,) and tokens.dtype == torch.int64


@pytest.mark.parametrize(
    "row", [{}, {"top_k": 4, "temperature": 0.7}, {"top_p": 0.6}, {"min_p": 0.2, "temperature": 2.0}]
)
def test_tokens_are_drawn_as_often_as_softmax_says(row: Row) -> None:
    draws = 20_000
    logits = random_logits(1, 12, 3) / 2
    s = sampling(*[{**row, "position": position, "seed": 11} for position in range(draws)])
    counts = torch.bincount(sample(logits.expand(draws, -1), s), minlength=12) / draws
    expected = mask_logits(logits / row.get("temperature", 1.0), sampling(row)).softmax(-1)[0]
    assert float((counts - expected).abs().max()) < 0.015
    assert bool((counts[expected == 0] == 0).all())


def test_seed_choice_and_position_each_change_the_noise() -> None:
    base = {"seed": 5, "choice": 1, "position": 9}
    others = [{**base, name: base[name] + 1} for name in base]
    swapped = {"seed": 5, "choice": 9, "position": 1}
    s = sampling(base, *others, swapped, base)
    noise = uniform(s.seed_L, s.choice_L, s.position_L).tolist()
    assert noise[0] == noise[-1] and len(set(noise)) == 5
    logits = random_logits(1, 1000, 0).expand(64, -1) / 10
    tokens = sample(logits, sampling(*[{"seed": seed} for seed in range(64)]))
    assert len(set(tokens.tolist())) > 50


@given(int64s, int64s, int64s)
def test_noise_is_in_range_and_the_same_as_in_plain_integers(seed: int, choice: int, position: int) -> None:
    s = sampling({"seed": seed, "choice": choice, "position": position})
    noise = float(uniform(s.seed_L, s.choice_L, s.position_L)[0])
    wrap = (1 << 64) - 1
    mixed = mix_int(mix_int(mix_int(seed & wrap) ^ (choice & wrap)) ^ (position & wrap))
    assert noise == (mixed >> 11) * 2.0**-53 and 0 <= noise < 1
    assert int(mix(torch.tensor(seed))) == signed(mix_int(seed & wrap))


@pytest.mark.parametrize("noise", [0.0, 1 - 2.0**-53])
def test_extreme_noise_never_draws_a_masked_token(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.sampler.uniform", lambda *_: torch.full((2,), noise, dtype=torch.float64))
    logits = torch.tensor([[-50.0, 1.0, 2.0, 1.0, -60.0], [-200.0, 3.0, -200.0, -200.0, -200.0]])
    tokens = sample(logits, sampling({"top_k": 3}, {"top_k": 1})).tolist()
    assert tokens == ([1, 1] if noise == 0 else [3, 1])


def test_half_precision_logits_are_taken() -> None:
    logits = random_logits(3, 50, 1).bfloat16()
    assert sample(logits, sampling({}, {}, {})).tolist() == sample(logits.float(), sampling({}, {}, {})).tolist()
