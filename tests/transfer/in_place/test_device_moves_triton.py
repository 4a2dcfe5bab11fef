"""The kernel of moves: interpreted, compiled for a GPU that is not there, and run where there is one."""

from importlib.util import find_spec

import pytest
import torch

from tests.compiled import cubin_bytes
from tests.interpreting import check_interpreted
from tests.transfer.in_place.device_cases import CASES, Case, moved_by_kernel
from transfer.in_place.device_pools import FIRST, SECOND, STEP


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel is compiled for the device here")
def test_interpreted_cases() -> None:
    check_interpreted("tests/transfer/in_place/interpreted_device_moves_triton.py")


@pytest.mark.slow
@pytest.mark.parametrize("word, writes", [("i64", True), ("i64", False), ("i16", True)])
def test_compiles_for_a_gpu_that_is_not_there(word: str, writes: bool) -> None:
    pytest.importorskip("triton")
    from transfer.in_place.device_moves_triton import BLOCKS, NUM_SUMS, _kernel  # noqa: PLC0415 - an optional package

    types = dict.fromkeys(("source_ptr", "target_ptr"), f"*{word}") | dict.fromkeys(("table_ptr", "sums_ptr"), "*i64")
    types |= dict.fromkeys(("source_tiles", "target_tiles", "num_tiles", "num_words", "pieces"), "i32")
    constants = {"STEP": STEP, "FIRST": FIRST, "SECOND": SECOND}
    assert cubin_bytes(_kernel, types, {"WRITES": writes, "SUMS": NUM_SUMS, "BLOCK": BLOCKS[0], **constants}) > 1000


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_the_device(case: Case) -> None:
    assert moved_by_kernel(case, "cuda") == case.moved_on_cpu()
    pool, totals = moved_by_kernel(case, "cuda", writes=False)
    assert pool == case.pool_before() and totals == case.moved_on_cpu()[1]
