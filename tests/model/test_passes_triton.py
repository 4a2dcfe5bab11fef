"""The passes in Triton: interpreted, compiled for a GPU that is not there, and run where there is one."""

from importlib.util import find_spec

import pytest
import torch

from model.fake import FakeRunner
from model.passes import TorchPasses
from model.runner import passes_of
from tests.compiled import cubin_bytes
from tests.interpreting import check_interpreted
from tests.model.passes_cases import (
    GATED_CASES,
    NORM_CASES,
    PLACE_CASES,
    PlaceCase,
    check_gated,
    check_norms,
    check_place,
)

GPU = torch.device("cuda")


@pytest.mark.parametrize("case", PLACE_CASES, ids=str)
def test_cases_hold_for_torchs_own(case: PlaceCase) -> None:
    check_place(TorchPasses, case, "float32", torch.device("cpu"))


@pytest.mark.parametrize("num_tokens, width", NORM_CASES)
def test_cases_of_norms_hold_for_torchs_own(num_tokens: int, width: int) -> None:
    check_norms(TorchPasses, num_tokens, width, "bfloat16", torch.device("cpu"))


def test_a_cpu_and_a_machine_without_triton_have_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    config = FakeRunner().config
    assert type(passes_of(config, torch.device("cpu"))) is TorchPasses
    monkeypatch.setattr("model.runner.find_spec", lambda _: None)
    assert type(passes_of(config, GPU)) is TorchPasses


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the device here")
def test_interpreted_cases() -> None:
    check_interpreted("tests/model/interpreted_passes_triton.py")


@pytest.mark.slow
def test_a_gpu_has_tritons() -> None:
    pytest.importorskip("triton")
    passes = passes_of(FakeRunner().config, GPU)
    assert type(passes).__name__ == "TritonPasses" and passes.head_dim == FakeRunner().head_dim


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("head_dim, norms", [(128, True), (80, False), (256, True)])
def test_compiles_for_a_gpu_that_is_not_there(head_dim: int, norms: bool, dtype: str) -> None:
    """Pointers, and eps of the model: no number that changes while serving, for which Triton would compile again."""
    triton = pytest.importorskip("triton")
    from model.passes_triton import NUMBERS, gated_kernel, place_kernel  # noqa: PLC0415 - an optional package

    padded = triton.next_power_of_2(head_dim)
    types = dict.fromkeys(("qkv_ptr", "norm_ptr", "q_ptr", "kv_ptr", "both_ptr", "out_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("cos_ptr", "sin_ptr"), "*fp32") | dict.fromkeys(("k_rows_ptr", "v_rows_ptr"), "*i64")
    types |= {"eps": "fp32"}
    sizes = {"NORMS": norms, "HEADS": 32, "KV_HEADS": 8, "HEAD_DIM": head_dim, "PADDED_DIM": padded}
    for kernel, constants in (
        (place_kernel, {**sizes, "BLOCK": NUMBERS // padded}),
        (gated_kernel, {"WIDTH": 12288, "BLOCK": NUMBERS}),
    ):
        own = {each.name: types[each.name] for each in kernel.params if each.name in types}
        assert cubin_bytes(kernel, own, constants) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("width", [1, 2560, 4096])
def test_norms_compile_for_a_gpu_that_is_not_there(width: int, dtype: str) -> None:
    pytest.importorskip("triton")
    from model.passes_triton import added_norm_kernel, rms_norm_kernel, row_sizes  # noqa: PLC0415 - optional

    for kernel in (rms_norm_kernel, added_norm_kernel):
        types = {each.name: f"*{dtype}" for each in kernel.params if each.name.endswith("_ptr")} | {"eps": "fp32"}
        sizes = row_sizes(width)
        launch = {"num_warps": sizes.pop("num_warps")}
        assert cubin_bytes(kernel, types, sizes, launch) > 1000


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_on_the_device(dtype: str) -> None:
    from model.passes_triton import TritonPasses  # noqa: PLC0415 - must not be imported where it is interpreted

    for case in PLACE_CASES:
        check_place(TritonPasses, case, dtype, GPU)
    for num_tokens, width in NORM_CASES:
        check_norms(TritonPasses, num_tokens, width, dtype, GPU)
    for num_tokens, width in GATED_CASES:
        check_gated(TritonPasses, num_tokens, width, dtype, GPU)
