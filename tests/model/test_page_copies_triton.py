"""The kernel that copies pages: interpreted, compiled for a GPU that is not there, and run where there is one."""

from importlib.util import find_spec

import pytest
import torch

from model.mirrored_kv import MirroredKv, _copy_on_host
from protocol.kv_layout import KvLayout
from tests.compiled import cubin_bytes
from tests.interpreting import check_interpreted
from tests.model.page_copies_cases import CASES, check_copy


@pytest.mark.parametrize("words, layers, pages", CASES)
def test_on_the_host(words: int, layers: int, pages: int) -> None:
    check_copy(_copy_on_host, words, layers, pages, torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel is compiled for the device here")
def test_interpreted_cases() -> None:
    check_interpreted("tests/model/interpreted_page_copies_triton.py")


@pytest.mark.slow
@pytest.mark.parametrize("word, stride", [("i64", "i32"), ("i64", "i64"), ("i16", "i32")])
def test_compiles_for_a_gpu_that_is_not_there(word: str, stride: str) -> None:
    pytest.importorskip("triton")
    from model.page_copies_triton import BLOCK, _kernel  # noqa: PLC0415 - an optional package

    types = dict.fromkeys(("source_ptr", "target_ptr"), f"*{word}") | dict.fromkeys(("from_ptr", "to_ptr"), "*i64")
    types |= dict.fromkeys(("source_stride", "target_stride"), stride)
    types |= dict.fromkeys(("num_layers", "num_pages", "num_words"), "i32")
    assert cubin_bytes(_kernel, types, {"BLOCK": BLOCK}) > 1000


@pytest.mark.gpu
@pytest.mark.parametrize("words, layers, pages", CASES)
def test_on_the_device(words: int, layers: int, pages: int) -> None:
    from model.page_copies_triton import copy_pages  # noqa: PLC0415 - must not be imported where it is interpreted

    check_copy(copy_pages, words, layers, pages, torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_twin_in_host_memory_and_back(page_size: int) -> None:
    """The kernel reads and writes pinned memory at the address that the host has for it."""
    kv = MirroredKv(KvLayout.uniform(3, 2, 64, page_size, "bfloat16"), 200, "cuda")
    scattered_N = (torch.randperm(199) + 1)[:77].cuda()
    kv.device_bytes.random_(0, 255)
    before = kv.device_bytes.clone()
    for layer in range(3):
        kv.stage_out(layer, scattered_N)
    torch.cuda.synchronize()
    kept = before.view(3, 200, -1)[:, scattered_N].cpu()
    for layer in range(3):
        for index, page in enumerate(scattered_N.tolist()):
            assert bytes(kv.page_bytes_view(layer, page, 1)) == kept[layer, index].numpy().tobytes()
    kv.device_bytes.zero_()
    kv.stage_in(scattered_N)
    torch.cuda.synchronize()
    assert torch.equal(kv.device_bytes.view(3, 200, -1)[:, scattered_N].cpu(), kept)
