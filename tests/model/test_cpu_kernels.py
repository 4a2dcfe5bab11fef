"""The C kernels against torch's operations and the plain formula."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.attention_cpu import CpuAttention
from model.cpu_build import NoKernels, find_compiler
from model.cpu_kernels import CpuKernels, CRequests, load_kernels
from model.fake import FakeRunner
from model.paged_kv import PagedKv
from model.scoring import PLAIN
from protocol.kv_layout import KvLayout, LayerLayout
from runtime.model_config import ModelConfig
from runtime.model_parts import AttentionConfig, LayerConfig, MlpConfig
from tests.model.attention_cases import Case, make_case
from tests.model.attention_contract import (
    ALL_CASES,
    SINK_CASES,
    TREE_CASES,
    WINDOW_CASES,
    WINDOW_TREE_CASES,
    ContractCase,
    check_a_mask_that_hides_nothing,
    check_alone_or_together,
    check_case,
)
from tests.model.passes_cases import (
    EPS,
    GATED_CASES,
    NORM_CASES,
    PLACE_CASES,
    MakePasses,
    PlaceCase,
    check_gated,
    check_norms,
    check_place,
)

CPU = torch.device("cpu")
HEAD_DIMS = (2, 16, 64, 80, 128)


def kernels_for(
    dtype: str = "float32", heads: tuple[int, int] = (4, 2), head_dim: int = 16, pages: str | None = None
) -> CpuKernels:
    activations = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    return load_kernels(config_of(heads, head_dim), activations, pages or dtype)


def config_of(heads: tuple[int, int], head_dim: int) -> ModelConfig:
    """A config with these sizes, of which the kernels read no others."""
    num_heads, num_kv_heads = heads
    layer = LayerConfig(AttentionConfig(num_heads, num_kv_heads, head_dim), MlpConfig(1))
    return replace(FakeRunner().config, layers=(layer,), rms_norm_eps=EPS)


def attended(case: Case, kernels: CpuKernels) -> Tensor:
    backend = CpuAttention(case.q_THD.dtype, kernels)
    plan = backend.plan(case.inp, case.layout)
    assert plan.decodes == () and (plan.paged is not None) == bool(case.inp.num_decodes)
    return backend.attend(case.q_THD, case.kv_layer, plan)


def worst(case: Case, kernels: CpuKernels) -> float:
    return float((attended(case, kernels).double() - case.expected_THD).abs().max())


# ---- attention ----


def make(num_heads: int, layout: LayerLayout) -> CpuAttention:
    kernels = kernels_for(heads=(num_heads, layout.num_kv_heads), head_dim=layout.head_dim)
    return CpuAttention(torch.float32, kernels)


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 4, 16, 48])
@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_the_contract_of_attention(case: ContractCase, page_size: int) -> None:
    check_case(make, case, page_size)


@pytest.mark.parametrize("page_size", [1, 16])
def test_tree_masks_windows_and_sinks(page_size: int) -> None:
    for case in (*TREE_CASES, *WINDOW_CASES, *SINK_CASES, *WINDOW_TREE_CASES):
        if (case.heads, case.head_dim) == ((4, 2), 16):  # as other tests have them: the library is there already
            check_case(make, case, page_size)
    check_a_mask_that_hides_nothing(make, page_size)
    check_alone_or_together(make, page_size, trees=True)
    check_alone_or_together(make, page_size, window=24)


HEADS = [(8, 1), (18, 2), (51, 3), (20, 10), (9, 9)]  # up to 17 that share a kv head, more kv heads than a part has


@pytest.mark.parametrize("heads", HEADS)
def test_numbers_of_heads(heads: tuple[int, int]) -> None:
    case = make_case(((9, 9), (12, 40)), (31, 2, 64), page_size=16, heads=heads)
    assert worst(case, kernels_for(heads=heads)) < 1e-5


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_sizes(head_dim: int) -> None:
    case = make_case((), (1, 16, 33, 500), page_size=16, head_dim=head_dim)
    assert worst(case, kernels_for(head_dim=head_dim)) < 1e-5


def test_bfloat16() -> None:
    case = make_case((), (300, 31, 2), page_size=16, dtype="bfloat16")
    assert worst(case, kernels_for("bfloat16")) < 0.01


@pytest.mark.parametrize(("heads", "head_dim"), [((4, 2), 16), ((9, 3), 48), ((4, 2), 12)])
def test_float32_over_bfloat16_pages(heads: tuple[int, int], head_dim: int) -> None:
    """Every number of slots in the last block of a page, and head sizes of whole and of broken vectors."""
    lengths = (300, *range(1, 40))
    case = make_case((), lengths, page_size=16, dtype="bfloat16", heads=heads, head_dim=head_dim)
    wide = Case(case.inp, case.layout, case.q_THD.float(), case.kv_layer, case.expected_THD)
    assert worst(wide, kernels_for("float32", heads=heads, head_dim=head_dim, pages="bfloat16")) < 1e-5


@pytest.mark.parametrize("scale", [1e4, 1e18])
def test_scores_beyond_what_an_exponential_holds(scale: float) -> None:
    case = make_case((), (40, 7), page_size=4)
    case.q_THD.mul_(scale)
    kernels = kernels_for()
    out = attended(case, kernels)
    plain = CpuAttention()
    expected = plain.attend(case.q_THD, case.kv_layer, plain.plan(case.inp, case.layout))
    assert torch.isfinite(out).all() and torch.allclose(out, expected, atol=1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_and_with_its_request(value: float) -> None:
    case = make_case((), (40, 7, 20), page_size=4)
    healthy = attended(case, kernels_for())
    case.q_THD[1] = value
    out = attended(case, kernels_for())
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], healthy[[0, 2]])


@pytest.mark.parametrize("heads", HEADS)
def test_a_request_does_not_depend_on_its_neighbours_or_on_threads(heads: tuple[int, int]) -> None:
    case = make_case((), (40, 7, 333, 20), page_size=16, heads=heads)
    kernels = kernels_for(heads=heads)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(attended(case, kernels))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    alone = torch.empty_like(case.q_THD[2:3])
    inp = case.inp
    own = CRequests.of(inp.page_table_BP[2:3], inp.seq_lens_B[2:3], inp.positions_T[2:3], None)
    kernels.attend(case.q_THD[2:3], case.kv_layer, own, PLAIN, alone)
    assert torch.equal(alone[0], found[0][2])


# ---- passes ----


def passes(dtype: str, case: PlaceCase = PLACE_CASES[0]) -> MakePasses:
    return lambda heads, head_dim, eps: kernels_for(dtype, case.heads, case.head_dim, case.pages)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_contract_of_passes(dtype: str) -> None:
    for num_tokens, width in NORM_CASES:
        check_norms(passes(dtype), num_tokens, width, dtype, CPU)
    for num_tokens, width in GATED_CASES:
        check_gated(passes(dtype), num_tokens, width, dtype, CPU)
    for case in PLACE_CASES:
        if case.head_dim in HEAD_DIMS:
            check_place(passes(dtype, case), case, dtype, CPU)


@pytest.mark.parametrize("is_apart", [True, False])
@pytest.mark.parametrize("is_normed", [True, False])
def test_placing_float32_in_bfloat16_pages(is_normed: bool, is_apart: bool) -> None:
    case = PlaceCase((6, 2), 16, 4, 23, is_normed, is_apart, pages="bfloat16")
    check_place(passes("float32", case), case, "float32", CPU)


def test_rotations_are_exact_at_any_position_and_do_not_depend_on_neighbours_or_threads() -> None:
    kernels, threads = kernels_for(), torch.get_num_threads()
    generator = torch.Generator().manual_seed(11)
    positions_T = torch.randint(0, 1 << 20, (1500,), generator=generator).sort().values
    inv_freq_F = 1e4 ** -(torch.arange(0, 16, 2) / 16)
    angles_TF = (positions_T.float()[:, None] * inv_freq_F).double()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            cos_TF, sin_TF = kernels.rotation(positions_T, inv_freq_F)
            assert (cos_TF - angles_TF.cos()).abs().max() < 2**-23 and (sin_TF - angles_TF.sin()).abs().max() < 2**-23
            for row in range(0, 1500, 101):
                alone = kernels.rotation(positions_T[row : row + 1], inv_freq_F)
                assert torch.equal(alone[0][0], cos_TF[row]) and torch.equal(alone[1][0], sin_TF[row])
    finally:
        torch.set_num_threads(threads)


def test_gate_of_what_is_not_finite_and_what_is_extreme() -> None:
    gate = torch.tensor([[float("nan"), float("inf"), 1e30, -1e30, 100.0, -100.0, 0.0]])
    expected = torch.tensor([[float("nan"), float("inf"), 1e30, 0.0, 100.0, 0.0, 0.0]])
    got = kernels_for().gated((gate, torch.ones_like(gate)))
    assert torch.allclose(got, expected, equal_nan=True, atol=1e-6)


def test_rounding_to_bfloat16_is_torch_s() -> None:
    """Of numbers between two, halfway, huge, tiny and NaN: placed as V, which nothing else touches."""
    layout = KvLayout.uniform(1, 2, 16, 4, "bfloat16")
    kernels = kernels_for("float32", pages="bfloat16")
    values = torch.randn(8, 32) * torch.logspace(-30, 30, 8)[:, None]
    values[0, :4] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, float("nan")])
    qkv = torch.cat((torch.zeros(8, 64 + 32), values), dim=1)
    kv = PagedKv(layout, 4)
    rows = kv.token_rows(torch.arange(4, 12))
    kernels.place((qkv,), None, (torch.ones(8, 8), torch.zeros(8, 8)), kv, 0, rows)
    placed = kv.layer(0)[1:3, 1].reshape(8, 32)
    assert torch.equal(placed.nan_to_num(7.0), values.bfloat16().nan_to_num(7.0))


@pytest.mark.full
def test_nothing_is_done_that_c_leaves_undefined(tmp_path: Path) -> None:
    """The tests above once more, where that ends the process: shifts, overflows, integers of NaN."""
    checks = "-fsanitize=undefined,float-cast-overflow -fsanitize-undefined-trap-on-error"
    environment = {**os.environ, "CC": f"{find_compiler()[0]} {checks}", "XDG_CACHE_HOME": str(tmp_path)}
    names = "finite or passes or exponential or tree"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", names, __file__],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert list(tmp_path.rglob("*.so"))


def test_types_without_kernels() -> None:
    with pytest.raises(NoKernels, match=r"none for torch.float16 with pages of float16"):
        load_kernels(config_of((4, 2), 16), torch.float16, "float16")
