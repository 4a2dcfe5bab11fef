"""The CPU backend against the plain formula: any mixture, any page size, NaN wherever nobody wrote."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model import attention_cpu
from model.attention_cpu import CpuAttention, group_by_length
from protocol.kv_layout import LayerLayout
from tests.model.attention_cases import Case, make_case
from tests.model.attention_contract import (
    ALL_CASES,
    ContractCase,
    check_a_mask_that_hides_nothing,
    check_case,
)


def make(num_heads: int, layout: LayerLayout) -> CpuAttention:
    return CpuAttention()


def worst(case: Case) -> float:
    backend = CpuAttention()
    plan = backend.plan(case.inp, case.layout, case.scoring.window)
    out = backend.attend(case.q_THD, case.kv_layer, plan, case.scoring)
    return float((out.double() - case.expected_THD).abs().max())


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_the_contract(case: ContractCase, page_size: int) -> None:
    check_case(make, case, page_size)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype: str) -> None:
    check_case(make, ContractCase("mixed", ((9, 9), (12, 40)), (31, 2)), 16, dtype=dtype)
    check_case(make, ContractCase("trees", ((9, 9),), (31, 90), trees=((20, 0b101), (30, 1 << 40))), 16, dtype=dtype)


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_mask_that_hides_nothing(page_size: int) -> None:
    check_a_mask_that_hides_nothing(make, page_size)


@pytest.mark.parametrize("kept", [0, 1 << 24])
def test_long_chunks_are_cut_into_blocks(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cpu, "QUERY_BLOCK", 7)
    monkeypatch.setattr(attention_cpu, "MAX_KEPT_MASK", kept)
    assert worst(make_case(((30, 41), (8, 9)), (), page_size=4)) < 1e-5
    assert worst(make_case(((30, 41), (30, 30)), (), page_size=4, window=9)) < 1e-5
    assert worst(make_case(((30, 41), (30, 30)), (), page_size=4, sinks=True)) < 1e-5


def test_ragged_decodes_are_cut_into_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cpu, "MAX_GROUP_BYTES", 40 * 2 * 16 * 4)
    case = make_case((), (10, 90, 12, 11, 80, 3), page_size=4)
    assert len(CpuAttention().plan(case.inp, case.layout).decodes) == 4
    assert worst(case) < 1e-5
    assert worst(make_case((), (10, 90, 12, 11, 80, 3), page_size=4, window=9, sinks=True)) < 1e-5
    masks = ((3, 1), (60, 5), (12, 0), (11, 0), (20, 1 << 40), (1, 2))
    assert worst(make_case((), (10, 90, 12, 11, 80, 3), page_size=4, trees=masks)) < 1e-5


@given(st.lists(st.integers(1, 500), max_size=30), st.integers(1, 2000))
def test_groups_hold_everyone_once_and_waste_at_most_half(seq_lens: list[int], max_tokens: int) -> None:
    groups = list(group_by_length(seq_lens, max_tokens))
    assert sorted(member for group in groups for member in group) == list(range(len(seq_lens)))
    for group in groups:
        longest = seq_lens[group[0]]
        assert all(longest <= 2 * seq_lens[member] and seq_lens[member] <= longest for member in group)
        assert len(group) == 1 or longest * len(group) <= max_tokens


def test_a_group_goes_on_as_far_as_it_may() -> None:
    assert list(group_by_length([8, 4], 16)) == [[0, 1]], "half as long, and 16 tokens"
    assert list(group_by_length([8, 3], 16)) == [[0], [1]] and list(group_by_length([8, 4], 15)) == [[0], [1]]
    assert list(group_by_length([6, 6, 6], 12)) == [[0, 1], [2]]


def test_kv_is_not_changed() -> None:
    case = make_case(((9, 9),), (31, 2), page_size=4)
    before = case.kv_layer.clone()
    worst(case)
    assert torch.equal(case.kv_layer.nan_to_num(7.0), before.nan_to_num(7.0))
