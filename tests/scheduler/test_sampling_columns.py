import pytest
import torch

from protocol.request import SamplingParams
from scheduler.sampling_columns import SamplingColumns, SamplingFlags, banned_endings
from tests.scheduler.building import CPU, make_req


@pytest.mark.parametrize(
    "seed,expected",
    [
        (0, 0),
        (2**63 - 1, 2**63 - 1),
        (2**63, -(2**63)),
        (2**64 - 1, -1),
        (-1, -1),
        (-(2**63), -(2**63)),
        (0x8000000000000001, -(2**63) + 1),
    ],
)
def test_a_64_bit_seed_keeps_its_bits(seed: int, expected: int) -> None:
    columns = SamplingColumns.of([make_req(sampling=SamplingParams(4, seed=seed))], CPU)
    assert (columns.seed_B.tolist(), columns.seed_B.dtype) == ([expected], torch.int64)


def test_columns_follow_take_and_concat() -> None:
    reqs = [
        make_req(sampling=SamplingParams(4, temperature=0.5 * i, top_k=i, top_p=1 - i / 8, min_p=i / 16, seed=i))
        for i in range(4)
    ]
    for choice, req in enumerate(reqs):
        req.choice = choice
    both = SamplingColumns.of(reqs[:1], CPU).concat(SamplingColumns.of(reqs[1:], CPU)).take(torch.tensor([3, 1]))
    assert both.temperature_B.tolist() == [1.5, 0.5]
    assert both.top_k_B.tolist() == both.seed_B.tolist() == both.choice_B.tolist() == [3, 1]
    assert both.top_p_B.tolist() == [1 - 3 / 8, 1 - 1 / 8]
    assert both.min_p_B.tolist() == [3 / 16, 1 / 16]


@pytest.mark.parametrize(
    "field,value,flag",
    [("top_k", 3, "any_top_k"), ("top_p", 0.9, "any_top_p"), ("min_p", 0.1, "any_min_p"), ("min_tokens", 1, None)],
)
def test_a_flag_is_up_when_one_row_asks(field: str, value: float, flag: str | None) -> None:
    plain = make_req(sampling=SamplingParams(4))
    asks = make_req(sampling=SamplingParams(4, **{field: value}))  # type: ignore[arg-type]
    name = flag or "any_min_tokens"
    assert not getattr(SamplingFlags.of([plain, plain]), name)
    assert getattr(SamplingFlags.of([plain, asks]), name)
    assert sum(vars(SamplingFlags.of([plain, asks])).values()) == 1


def test_all_greedy_needs_all() -> None:
    cold, hot = (make_req(sampling=SamplingParams(4, temperature=t)) for t in (0.0, 0.7))
    assert SamplingFlags.of([cold, cold]).all_greedy
    assert not SamplingFlags.of([cold, hot]).all_greedy


def test_endings_are_banned_until_min_tokens_is_launched() -> None:
    params = SamplingParams(9, min_tokens=2, stop_token_ids=(8,), eos_token_ids=(3, 5))
    reqs = [make_req(sampling=SamplingParams(9, eos_token_ids=(1,))), make_req(sampling=params)]
    assert banned_endings(reqs) == ((1, (3, 5, 8)),)
    reqs[1].num_sampled = 1
    assert banned_endings(reqs) == ((1, (3, 5, 8)),)
    reqs[1].num_sampled = 2
    assert banned_endings(reqs) == ()


def test_ignored_eos_is_not_banned() -> None:
    req = make_req(sampling=SamplingParams(9, min_tokens=1, stop_token_ids=(8,), eos_token_ids=(3,), ignore_eos=True))
    assert banned_endings([req]) == ((0, (8,)),)


def test_the_samplers_input_carries_the_positions() -> None:
    reqs = [make_req(sampling=SamplingParams(9, min_tokens=1, stop_token_ids=(8,))), make_req(choice=1)]
    columns, position = SamplingColumns.of(reqs, CPU), torch.tensor([7, 9])
    got = columns.input(reqs, SamplingFlags.of(reqs), position)
    assert got.position_L.tolist() == [7, 9]
    assert got.choice_L.tolist() == [0, 1]
    assert got.banned == ((0, (8,)),)
