"""Grouped experts in Triton: interpreted, compiled for a GPU that is not there, and run where there is one."""

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from model.cuda_capture import CudaCapture
from model.experts import Experts, is_grouped
from runtime.model_parts import ExpertsConfig, MlpConfig, RouterConfig
from tests.compiled import compiled
from tests.interpreting import check_interpreted
from tests.model.experts_cases import (
    CASES,
    LARGE,
    PASSES,
    ExpertsCase,
    check_experts,
    check_not_finite,
    check_rows,
    random_case,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")
FEED = ExpertsConfig(8, RouterConfig(2), MlpConfig(48))
NUMBERS = ("x_ptr", "inner_ptr", "each_ptr", "shared_ptr", "out_ptr")


def as_it_is(mixture: Experts) -> Experts:
    return mixture


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cases_hold_for_torchs_own(case: ExpertsCase) -> None:
    check_experts(as_it_is, case, "float32", CPU)


def test_what_is_not_finite_holds_for_torchs_own() -> None:
    check_not_finite(as_it_is, CPU)


def test_skewed_routes_leave_experts_without_tokens_and_give_one_all() -> None:
    case = next(case for case in CASES if case.routes == "skewed" and case.num_chosen > 1)
    chosen_TK, _ = case.mixture("float32", CPU).router(case.tokens("float32", CPU))
    counts = chosen_TK.flatten().bincount(minlength=case.num_experts).tolist()
    assert counts[1] == case.num_tokens and counts[-2:] == [0, 0] and sum(map(bool, counts)) > 3


def test_experts_are_grouped_on_a_gpu_with_triton_if_it_has_their_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.experts.find_spec", lambda name: name)
    gated = {gate: replace(FEED, expert=MlpConfig(48, gate=gate)) for gate in ("silu", "clamped", "gelu_tanh")}
    assert [is_grouped(feed, GPU) for feed in gated.values()] == [True, True, False]
    assert not any(is_grouped(feed, CPU) or is_grouped(feed, torch.device("meta")) for feed in gated.values())
    monkeypatch.setattr("model.experts.find_spec", lambda _: None)
    assert not is_grouped(FEED, GPU)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the device here")
def test_interpreted_cases() -> None:
    check_interpreted("tests/model/interpreted_experts_triton.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "hidden, width, gpt_oss, dtype",
    [(2048, 768, False, "bf16"), (2880, 2880, True, "fp16"), (37, 29, True, "bf16"), (2048, 768, False, "fp32")],
)
def test_compiles_for_a_gpu_that_is_not_there(hidden: int, width: int, gpt_oss: bool, dtype: str) -> None:
    """Weights of whole rows of 16 bytes are read so many bytes at once, although their addresses come from a table."""
    pytest.importorskip("triton")
    from model import experts_triton as own  # noqa: PLC0415 - an optional package

    tiles = own.FLOAT32 if dtype == "fp32" else own.NARROW
    sizes = {"HIDDEN": hidden, "WIDTH": width, "BIAS": gpt_oss}
    sizes |= {"ROWS": tiles.rows, "COLUMNS": tiles.columns, "STEP": tiles.step}
    gate = {"CHOSEN": 8, "LIMIT": 7.0 if gpt_oss else 0.0, "ALPHA": 1.702 if gpt_oss else 0.0}
    products = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    summed = {"HIDDEN": hidden, "CHOSEN": 8, "SHARED": not gpt_oss, "PIECE": own.PIECE}
    kernels: tuple[tuple[Any, dict[str, Any], dict[str, int], bool], ...] = (
        (own.sort_kernel, {"ROWS": tiles.rows, "LANES": own.SORTED}, {"num_warps": own.SORTING_WARPS}, False),
        (own.gate_kernel, sizes | gate, products, hidden % 8 == 0),
        (own.down_kernel, sizes, products, width % 8 == 0),
        (own.sum_kernel, summed, {}, False),
    )
    types = dict.fromkeys(NUMBERS, f"*{dtype}") | {"weights_ptr": "*fp32", "num_pairs": "i32"}
    types |= dict.fromkeys(("chosen_ptr", "addresses_ptr"), "*i64") | dict.fromkeys(("pairs_ptr", "blocks_ptr"), "*i32")
    for kernel, constants, launch, is_wide in kernels:
        named = {each.name: types[each.name] for each in kernel.params if each.name in types}
        made = compiled(kernel, named, constants, launch)
        assert len(made.asm["cubin"]) > 1000 and ("cp.async.cg" in made.asm["ptx"]) == is_wide


@pytest.mark.slow
def test_numbers_that_change_while_serving_need_no_other_kernel() -> None:
    """Triton compiles anew for an integer that is 1, or divisible by 16, unless told not to."""
    pytest.importorskip("triton")
    from model import experts_triton as own  # noqa: PLC0415 - an optional package

    kernels = own.sort_kernel, own.gate_kernel, own.down_kernel, own.sum_kernel
    numbers = [
        each for kernel in kernels for each in kernel.params if not each.is_constexpr and not each.name.endswith("_ptr")
    ]
    assert [each.name for each in numbers] == ["num_pairs"] and all(each.do_not_specialize for each in numbers)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_on_the_device(dtype: str) -> None:
    from model.experts_triton import TritonExperts  # noqa: PLC0415 - must not be imported where it is interpreted

    for case in (*CASES, *LARGE, *map(random_case, range(20))):
        check_experts(TritonExperts.of, case, dtype, GPU)
        check_rows(TritonExperts.of, case, dtype, GPU)
    check_not_finite(TritonExperts.of, GPU)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [case for case in CASES if case.num_tokens], ids=str)
def test_a_graph_gives_what_its_tokens_give_without_one(case: ExpertsCase) -> None:
    """Also for tokens that go to other experts than those that were there at the capture: nothing is read back."""
    from model.experts_triton import TritonExperts  # noqa: PLC0415

    grouped, x_TE = TritonExperts.of(case.mixture("bfloat16", GPU)), case.tokens("bfloat16", GPU)
    out_TE, others_TE = torch.empty_like(x_TE), x_TE.flip(1).contiguous()
    wanted_TE = grouped(others_TE, PASSES)
    grouped(x_TE, PASSES)

    def run() -> None:
        out_TE.copy_(grouped(x_TE, PASSES))

    replay = CudaCapture()(run)
    x_TE.copy_(others_TE)
    replay()
    assert torch.equal(out_TE, wanted_TE)
