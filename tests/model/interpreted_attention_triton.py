"""The Triton kernels, interpreted, against attention in float64. Run by test_attention_triton.py in a process of its
own.

Triton decides when it is imported whether kernels are interpreted, so TRITON_INTERPRET=1 must be there from the start.
float16 stands for half precision: the interpreter multiplies the raw bits of bfloat16 (a GPU test has that).
"""

from dataclasses import replace

import pytest
import torch

import tests.interpreted  # noqa: F401 - mends what the installed versions need
from model import attention_triton
from model.attention_triton import SPLIT, TritonAttention, extend_tiles
from protocol.kv_layout import LayerLayout
from tests.model.attention_cases import make_case
from tests.model.attention_contract import (
    ALL_CASES,
    ContractCase,
    check_a_graph_can_be_made,
    check_a_mask_that_hides_nothing,
    check_alone_or_together,
    check_case,
)

CPU = torch.device("cpu")


def make(num_heads: int, layout: LayerLayout, max_context: int = 6000) -> TritonAttention:
    return TritonAttention(num_heads, layout.num_kv_heads, layout.head_dim, max_context, CPU)


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_the_contract(case: ContractCase) -> None:
    check_case(make, case, page_size=16)


@pytest.mark.parametrize("case", ALL_CASES[::3], ids=str)
def test_the_contract_with_pages_of_one_token(case: ContractCase) -> None:
    check_case(make, case, page_size=1)


def test_half_precision() -> None:
    for trees in ((), ((20, 0b101), (260, 1 << 30))):
        check_case(make, ContractCase("mixed", ((12, 40),), (30, 300), trees=trees), 4, dtype="float16")


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("page_size, dtype", [(16, "float32"), (1, "float16")])
def test_a_request_does_not_depend_on_its_neighbours(page_size: int, dtype: str, trees: bool) -> None:
    check_alone_or_together(make, page_size, dtype=dtype, trees=trees)


def test_a_request_with_a_window_does_not_depend_on_its_neighbours() -> None:
    check_alone_or_together(make, 16, window=24)


def test_a_tree_mask_that_hides_nothing() -> None:
    check_a_mask_that_hides_nothing(make, 16)


@pytest.mark.parametrize("num_programs, at_once", [(1, 1), (3, 2), (100, 100)])
def test_the_number_of_programs_and_of_launches_changes_no_bit(num_programs: int, at_once: int) -> None:
    masks = ((650, 9), (30, 1), (200, 1 << 50), (1, 0), (100, 5))
    case = make_case((), (700, 40, 256, 1, 513), page_size=16, trees=masks)
    few, many = make(4, case.layout), make(4, case.layout)
    few.num_programs, few.max_splits = num_programs, at_once * 3  # 3 splits make the longest of these contexts
    plan = few.plan(case.inp, case.layout)
    assert len(plan.decodes) == -(-5 // at_once)
    assert torch.equal(
        few.attend(case.q_THD, case.kv_layer, plan),
        many.attend(case.q_THD, case.kv_layer, many.plan(case.inp, case.layout)),
    )


@pytest.mark.parametrize("most", [5, 11, 15])
def test_so_many_contexts_of_the_longest_at_once_take_one_launch_and_one_token_more_several(most: int) -> None:
    """Whatever length a graph was captured for, its result is the same."""
    lens = (500, 40, 256, 1, 512)
    case = make_case((), lens, page_size=16)
    backend, whole = make(4, case.layout), make(4, case.layout)
    backend.max_splits = most
    longest = backend.longest_at_once(len(lens))
    assert longest == most // 5 * SPLIT
    for bound, is_one in ((longest, True), (longest + 1, False)):
        if bound < max(lens):
            continue
        plan = backend.plan(replace(case.inp, max_decode_seq_len=bound), case.layout)
        assert (len(plan.decodes) == 1) == is_one
        found = backend.attend(case.q_THD, case.kv_layer, plan)
        assert torch.equal(found, whole.attend(case.q_THD, case.kv_layer, whole.plan(case.inp, case.layout)))


def test_a_long_context_is_the_work_of_many_programs() -> None:
    case = make_case((), (3000,), page_size=16)
    backend = make(4, case.layout)
    [decodes] = backend.plan(case.inp, case.layout).decodes
    assert decodes.starts_R.tolist() == [0, -(-3000 // SPLIT)]
    assert decodes.row_X.tolist() == [0] * -(-3000 // SPLIT)


def test_a_graph_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that numbers splits is left out: the interpreter itself reads on the host."""
    monkeypatch.setattr(attention_triton, "number_kernel", {(3,): lambda *_, **__: None})
    check_a_graph_can_be_made(make, monkeypatch)


def test_memory_of_partial_results_is_bounded_and_holds_the_longest_context(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LayerLayout(2, 16, 16, "float32")
    split_bytes = 4 * (16 + 2) * 4
    monkeypatch.setattr(attention_triton, "SCRATCH_BYTES", 1000 * split_bytes)
    assert make(4, layout, 10 * SPLIT).max_splits == 1000
    assert make(4, layout, SPLIT).max_splits == attention_triton.SCRATCH_ROWS
    assert make(4, layout, 5000 * SPLIT + 1).max_splits == 5001


def test_tiles_cover_every_token_once() -> None:
    tiles = extend_tiles((5, 1, 9), (5, 8, 20), 4)
    assert [(first, count) for _, first, count, _ in tiles] == [(0, 4), (4, 1), (5, 1), (6, 4), (10, 4), (14, 1)]
    assert [(request, position) for request, _, _, position in tiles] == [
        (0, 0),
        (0, 4),
        (1, 7),
        (2, 11),
        (2, 15),
        (2, 19),
    ]
