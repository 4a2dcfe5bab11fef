"""The Triton kernel: in Triton's interpreter where there is no GPU, compiled where there is one."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.compiled import cubin_bytes
from tests.model.attention_cases import BATCHES, make_case, worst_difference

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel is compiled for the device here")
def test_interpreted_cases() -> None:
    """A process of its own: Triton reads TRITON_INTERPRET once, when anything first imports it."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "tests/model/interpreted_attention_triton.py"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("bfloat16", 0.03), ("float16", 0.005)])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("heads, head_dim", [((4, 2), 64), ((8, 8), 128), ((28, 4), 128)])
def test_on_the_device(heads: tuple[int, int], head_dim: int, page_size: int, dtype: str, tolerance: float) -> None:
    from model.attention_triton import TritonAttention  # noqa: PLC0415 - must not be imported where it is interpreted

    for extends, decodes in (*BATCHES, (((300, 500),), (700, 20))):
        case = make_case(extends, decodes, page_size=page_size, heads=heads, head_dim=head_dim, dtype=dtype)
        assert worst_difference(TritonAttention(*heads), case, "cuda") < tolerance


@pytest.mark.slow
def test_a_wider_page_table_needs_no_other_kernel() -> None:
    """Triton compiles anew for an integer that is 1, or divisible by 16, unless told not to."""
    pytest.importorskip("triton")
    from model.attention_triton import _kernel  # noqa: PLC0415 - an optional package

    varying = [each.name for each in getattr(_kernel, "params", ()) if each.do_not_specialize]
    assert varying == ["table_stride"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_compiles_for_a_gpu_that_is_not_there(dtype: str) -> None:
    pytest.importorskip("triton")
    from model.attention_triton import _kernel  # noqa: PLC0415 - an optional package

    types = dict.fromkeys(("table_stride", "page_stride", "side_stride", "token_stride"), "i32")
    types |= dict.fromkeys(("q_ptr", "kv_ptr", "out_ptr"), f"*{dtype}") | {"scale": "fp32"}
    types |= dict.fromkeys(("tiles_ptr", "page_table_ptr"), "*i64")
    sizes = {"HEADS": 32, "GROUPS": 4, "HEAD_DIM": 128, "PAGE_SIZE": 16, "ROWS": 64, "STEP": 32, "PADDED_DIM": 128}
    assert cubin_bytes(_kernel, types, sizes) > 1000
