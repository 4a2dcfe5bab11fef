"""The Triton kernel: in Triton's interpreter where there is no GPU, compiled where there is one."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from model.attention import AttentionBackend
from protocol.kv_layout import LayerLayout
from tests.compiled import cubin_bytes
from tests.interpreting import check_interpreted
from tests.model.attention_contract import (
    ALL_CASES,
    ContractCase,
    check_a_mask_that_hides_nothing,
    check_alone_or_together,
    check_case,
)

ROOT = Path(__file__).resolve().parents[2]
REAL_SIZES = tuple(
    ContractCase(f"{heads} heads of {head_dim}", ((300, 500),), (700, 20, 5000), heads=heads, head_dim=head_dim)
    for heads, head_dim in (((4, 2), 64), ((8, 8), 128), ((28, 4), 128), ((32, 8), 128))
)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel is compiled for the device here")
@pytest.mark.broad
@pytest.mark.parametrize("half", ["contract", "not contract"])
def test_interpreted_cases(half: str) -> None:
    """A process of its own: Triton reads TRITON_INTERPRET once, when anything first imports it."""
    check_interpreted("tests/model/interpreted_attention_triton.py", "-k", half)


def make_on_the_device(num_heads: int, layout: LayerLayout) -> AttentionBackend:
    from model.attention_triton import TritonAttention  # noqa: PLC0415 - must not be imported where it is interpreted

    return TritonAttention(num_heads, layout.num_kv_heads, layout.head_dim, 10_000, torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("case", (*ALL_CASES, *REAL_SIZES), ids=str)
def test_the_contract_on_the_device(case: ContractCase, page_size: int, dtype: str) -> None:
    check_case(make_on_the_device, case, page_size, "cuda", dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_request_does_not_depend_on_its_neighbours_on_the_device(page_size: int, dtype: str) -> None:
    check_alone_or_together(make_on_the_device, page_size, "cuda", dtype)
    check_alone_or_together(make_on_the_device, page_size, "cuda", dtype, trees=True)
    check_alone_or_together(make_on_the_device, page_size, "cuda", dtype, window=24)
    check_a_mask_that_hides_nothing(make_on_the_device, page_size, "cuda", dtype)


@pytest.mark.slow
def test_numbers_that_change_while_serving_need_no_other_kernel() -> None:
    """Triton compiles anew for an integer that is 1, or divisible by 16, unless told not to."""
    pytest.importorskip("triton")
    from model import attention_kernels as kernels  # noqa: PLC0415 - an optional package

    varying = {"num_decodes", "first_request", "first_token", "table_stride"}  # a window does not change
    for kernel in (kernels.tiles_kernel, kernels.number_kernel, kernels.splits_kernel, kernels.combine_kernel):
        named = {each.name for each in kernel.params}
        assert {each.name for each in kernel.params if each.do_not_specialize} == varying & named
        columns = {"seq_lens_ptr", "tree_starts_ptr", "tree_bits_ptr", "firsts_ptr"}  # parts of larger tensors
        assert {each.name for each in kernel.params if each.do_not_specialize_on_alignment} == columns & named


SHAPE = {"HEADS": 32, "HEAD_DIM": 128, "PADDED_DIM": 128}
ATTENDS = {**SHAPE, "GROUPS": 4, "PAGE_SIZE": 16}


@pytest.mark.slow
@pytest.mark.parametrize("has_more", [False, True])
@pytest.mark.parametrize("dtype, rows, step", [("bf16", 64, 64), ("fp32", 32, 32)])
def test_chunks_compile_for_a_gpu_that_is_not_there(dtype: str, rows: int, step: int, has_more: bool) -> None:
    pytest.importorskip("triton")
    from model.attention_kernels import tiles_kernel  # noqa: PLC0415 - an optional package

    types = {"table_stride": "i32", "window": "i32", "sinks_ptr": "*fp32"} | dict.fromkeys(
        ("q_ptr", "kv_ptr", "out_ptr"), f"*{dtype}"
    )
    types |= dict.fromkeys(("tiles_ptr", "page_table_ptr"), "*i64") | {"scale": "fp32"}
    assert (
        cubin_bytes(tiles_kernel, types, {**ATTENDS, "ROWS": rows, "STEP": step, "WINDOW": has_more, "SINKS": has_more})
        > 1000
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype, step", [("bf16", 64), ("fp32", 32)])
def test_decodes_compile_for_a_gpu_that_is_not_there(dtype: str, step: int) -> None:
    pytest.importorskip("triton")
    from model import attention_kernels as kernels  # noqa: PLC0415 - an optional package

    integers = ("num_decodes", "first_request", "first_token", "table_stride")
    types = dict.fromkeys(integers, "i32") | dict.fromkeys(("q_ptr", "kv_ptr", "out_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("seq_lens_ptr", "starts_ptr", "page_table_ptr"), "*i64") | {"rows_ptr": "*i32"}
    types |= dict.fromkeys(("tree_starts_ptr", "tree_bits_ptr", "firsts_ptr"), "*i64") | {"sinks_ptr": "*fp32"}
    types |= dict.fromkeys(("sums_ptr", "scales_ptr"), "*fp32") | {"scale": "fp32"}
    for kernel, sizes in (
        (kernels.number_kernel, {"SPLIT": 256, "BLOCK": 128}),
        (kernels.splits_kernel, {**ATTENDS, "ROWS": 16, "SPLIT": 256, "STEP": step, "TREE": False, "WINDOW": False}),
        (kernels.splits_kernel, {**ATTENDS, "ROWS": 16, "SPLIT": 256, "STEP": step, "TREE": True, "WINDOW": True}),
        (kernels.combine_kernel, {**SHAPE, "COMBINED": 16, "COMBINED_HEADS": 1, "SINKS": False}),
        (kernels.combine_kernel, {**SHAPE, "COMBINED": 8, "COMBINED_HEADS": 4, "SINKS": True}),
    ):
        own = {each.name: types[each.name] for each in kernel.params if each.name in types}
        assert cubin_bytes(kernel, own, sizes) > 1000
