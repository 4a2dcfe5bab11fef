"""The sampler: transformers' masks, noise from (seed, choice, position) alone, rows that ignore their neighbours."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from model.sampler import mask_logits, mix, sample, signed, uniform
from model.sampling_input import Banned, ParamColumns, SamplingInput
from tests.doubles.hash_model import mix_int
from tests.model.driving import Row, random_logits, sampling

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


def descending(scores: list[float]) -> list[int]:
    """Ids by rank: the highest score first, and of equal ones the highest id."""
    return sorted(range(len(scores)), key=lambda token: (-scores[token], -token))


def kept_by_definition(scores: list[float], top_k: int, top_p: float) -> set[int]:
    """What top-k and then top-p leave, one token after the other."""
    ranked = [token for token in descending(scores) if scores[token] > -math.inf]
    if top_k and top_k < len(ranked):
        smallest = scores[ranked[top_k - 1]]
        ranked = [token for token in ranked if scores[token] >= smallest]
    if top_p == 1:
        return set(ranked)
    weights = [math.exp(scores[token] - scores[ranked[0]]) for token in ranked]
    wanted, before = float(np.float32(top_p)) * math.fsum(weights), 0.0
    for count, weight in enumerate(weights):
        if before >= wanted:
            return set(ranked[: max(count, 1)])
        before += weight
    return set(ranked)


# No sum of a few equal probabilities comes near these, so that rounding does not decide.
TOP_PS = [1e-9, 0.0313, 0.4871, 0.8137, 0.9731, 1.0]
SCORES = st.sampled_from([-math.inf, -30.0, -1.5, -0.0, 0.0, 1e-40, 0.25, 0.5, 0.5, 2.0])


@given(st.data())
def test_kept_tokens_are_those_of_the_definition_also_where_logits_are_equal(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 40))
    batch = data.draw(st.lists(st.tuples(st.sampled_from([0, 1, 2, 7, 39, 500]), st.sampled_from(TOP_PS)), min_size=1))
    scores = [[*data.draw(st.lists(SCORES, min_size=vocab - 1, max_size=vocab - 1)), 0.25] for _ in batch]
    masked = mask_logits(torch.tensor(scores), sampling(*[{"top_k": k, "top_p": p} for k, p in batch]))
    for row, (top_k, top_p), own in zip(masked, batch, scores, strict=True):
        kept = {token for token, score in enumerate(row.tolist()) if score > -math.inf}
        assert kept == kept_by_definition(own, top_k, top_p)
        assert all(row[token] == own[token] for token in kept)


@given(st.lists(rows, min_size=2, max_size=9), st.integers(0, 1000))
def test_the_kept_set_does_not_depend_on_neighbours_also_where_logits_are_equal(batch: list[Row], seed: int) -> None:
    logits = (random_logits(len(batch), 67, seed) / 2).round() / 2  # many are equal
    warm = [{**row, "temperature": 1.0} for row in batch]
    together = mask_logits(logits.clone(), sampling(*warm))
    alone = [mask_logits(logits[i : i + 1].clone(), sampling(row)) for i, row in enumerate(warm)]
    assert torch.equal(together, torch.cat(alone))
    assert sample(logits, sampling(*batch)).tolist() == [
        int(sample(logits[i : i + 1], sampling(row))[0]) for i, row in enumerate(batch)
    ]


@pytest.mark.parametrize("spread,least", [(0.0, 130_000), (1e-3, 130_000), (0.5, 60_000), (4.0, 2)])
def test_a_long_tail_is_cut_exactly(spread: float, least: int) -> None:
    """A whole vocabulary, from one where every token counts to one with a sharp peak."""
    logits = random_logits(1, 151_936, 7) * spread
    top_p = 0.9
    kept = mask_logits(logits.clone(), sampling({"top_p": top_p}))[0] > -math.inf
    values, order = torch.sort(logits[0], stable=True)
    weights = (values - values[-1]).double().exp()
    below = weights.cumsum(0) / weights.sum()
    expected = torch.zeros_like(kept).scatter(0, order, below > 1 - float(np.float32(top_p)))
    different = kept != expected
    assert int(kept.sum()) > least
    assert int(different.sum()) <= 2 and float(weights[different[order]].sum() / weights.sum()) < 1e-5


class Operations(TorchDispatchMode):  # type: ignore[misc]
    """(name, first dimension of the first tensor) of everything that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if args and isinstance(args[0], Tensor) and args[0].ndim else None
        self.seen.append((func._schema.name, -1 if first is None else first.shape[0]))
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("asked", [{"top_k": 5}, {"top_p": 0.8}, {"top_k": 5, "top_p": 0.8}])
def test_only_the_rows_that_ask_are_selected_from_and_nothing_is_sorted(asked: Row) -> None:
    logits, batch = random_logits(16, 61, 0), sampling(*[{}] * 5, asked, *[{}] * 9, asked)
    with Operations() as operations:
        sample(logits, batch)
    names = {name for name, _ in operations.seen}
    assert not names & {"aten::sort", "aten::topk", "aten::argsort"}
    sums = [num_rows for name, num_rows in operations.seen if name == "aten::scatter_add_"]
    assert sums == [2] * 3 * len(asked)
    with Operations() as operations:
        sample(logits, sampling(*[{}] * 16))
    assert "aten::scatter_add_" not in {name for name, _ in operations.seen}


def test_nothing_waits_for_the_device() -> None:
    """Meta tensors have shapes and no values: whatever needs a value on the host fails."""
    batch = sampling(
        {}, {"top_k": 5, "top_p": 0.8, "min_p": 0.1}, {"temperature": 0.0, "banned": (3, 5)}, {"top_p": 0.5}
    )
    assert batch.banned is not None
    asking: dict[str, Any] = {
        name: rows_N.to("meta") for name, rows_N in batch.asking._asdict().items() if isinstance(rows_N, Tensor)
    }
    away = SamplingInput(
        ParamColumns(*(value.to("meta") for value in batch.params)),
        batch.asking._replace(**asking),
        batch.position_L.to("meta"),
        Banned(*(value.to("meta") for value in batch.banned)),
    )
    tokens = sample(torch.empty(4, 61, device="meta"), away)
    assert (tokens.shape, tokens.dtype, tokens.device.type) == ((4,), torch.int64, "meta")
    with Operations() as operations:
        sample(random_logits(4, 61, 0), batch)
    names = {name for name, _ in operations.seen}
    assert not names & {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::index"}


def test_a_ban_ends_where_the_device_says_that_the_position_is() -> None:
    logits = torch.tensor([[0.0, 9.0, 5.0, 7.0]]).repeat(4, 1)
    batch = sampling(*[{"temperature": 0.0, "position": position} for position in (3, 4, 5, 6)])
    banned = Banned(torch.tensor([2, 0, 1]), torch.tensor([[1, 3], [3, 1], [1, -1]]), torch.tensor([5, 5, 5]))
    assert sample(logits, replace(batch, banned=banned)).tolist() == [2, 3, 1, 1]


def test_what_fills_up_a_shorter_ban_list_bans_nothing() -> None:
    logits = torch.tensor([[9.0, 5.0, 1.0]]).repeat(2, 1)
    batch = sampling(*[{"temperature": 0.0, "position": 3}] * 2)
    banned = Banned(torch.tensor([0, 1]), torch.tensor([[0, 2], [2, -1]]), torch.tensor([5, 5]))
    assert sample(logits, replace(batch, banned=banned)).tolist() == [1, 0]


def test_no_rows() -> None:
    tokens = sample(torch.zeros(0, 5), sampling())
    assert tokens.shape == (0,) and tokens.dtype == torch.int64


def test_seed_choice_and_position_each_change_the_noise() -> None:
    base = {"seed": 5, "choice": 1, "position": 9}
    others = [{**base, name: base[name] + 1} for name in base]
    swapped = {"seed": 5, "choice": 9, "position": 1}
    s = sampling(base, *others, swapped, base)
    noise = uniform(s.params.seed_L, s.params.choice_L, s.position_L).tolist()
    assert noise[0] == noise[-1] and len(set(noise)) == 5
    logits = random_logits(1, 1000, 0).expand(64, -1) / 10
    tokens = sample(logits, sampling(*[{"seed": seed} for seed in range(64)]))
    assert len(set(tokens.tolist())) > 50


@given(int64s, int64s, int64s)
def test_noise_is_in_range_and_the_same_as_in_plain_integers(seed: int, choice: int, position: int) -> None:
    s = sampling({"seed": seed, "choice": choice, "position": position})
    noise = float(uniform(s.params.seed_L, s.params.choice_L, s.position_L)[0])
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
