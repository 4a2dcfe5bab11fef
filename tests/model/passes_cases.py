"""What the passes of a layer must do on any device: the same as torch's operations."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model.paged_kv import TORCH_DTYPES, PagedKv
from model.passes import Passes, TorchPasses
from protocol.kv_layout import KvLayout

EPS = 1e-6
MakePasses = Callable[[int, int, float], Passes]  # heads, head_dim, eps


@dataclass(frozen=True)
class PlaceCase:
    """Query heads and kv heads, head_dim, tokens of a page, tokens."""

    heads: tuple[int, int]
    head_dim: int
    page_size: int
    num_tokens: int
    is_normed: bool = True
    is_apart: bool = False  # q, k and v are three tensors
    pages: str | None = None  # their dtype; None: that of the rest

    def __str__(self) -> str:
        parts = f"{self.num_tokens} of {self.heads} heads of {self.head_dim}, pages of {self.page_size}"
        return parts + (", norms" if self.is_normed else "") + (", apart" if self.is_apart else "")


PLACE_CASES = (
    PlaceCase((4, 2), 16, 16, 7),
    PlaceCase((4, 2), 16, 1, 1, is_normed=False),
    PlaceCase((32, 8), 128, 16, 5),
    PlaceCase((28, 4), 128, 64, 2, is_normed=False),
    PlaceCase((9, 9), 64, 4, 33),
    PlaceCase((6, 1), 80, 16, 6),  # not a power of two
    PlaceCase((2, 2), 20, 3, 9, is_apart=True),
    PlaceCase((3, 1), 256, 16, 4),
    PlaceCase((4, 2), 16, 16, 0),
)
NORM_CASES = ((1, 1), (5, 24), (3, 1024), (2, 2560), (4, 4096), (1, 5120), (0, 64))  # tokens, width
GATED_CASES = ((1, 1), (5, 24), (3, 1024), (2, 2500), (0, 64))  # tokens, width


def numbers(seed: int, *shape: int, dtype: str, device: torch.device) -> Tensor:
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(TORCH_DTYPES[dtype]).to(device)


def check_place(make: MakePasses, case: PlaceCase, dtype: str, device: torch.device) -> None:
    """Queries, every page, and all else of the KV, beside TorchPasses."""
    (heads, kv_heads), head_dim = case.heads, case.head_dim
    sizes = [count * head_dim for count in (heads, kv_heads, kv_heads)]
    qkv_TN = numbers(1, case.num_tokens, sum(sizes), dtype=dtype, device=device)
    qkv = tuple(each.contiguous() for each in qkv_TN.split(sizes, dim=-1)) if case.is_apart else (qkv_TN,)
    norm_ND = numbers(2, heads + kv_heads, head_dim, dtype=dtype, device=device) if case.is_normed else None

    layout = KvLayout.uniform(2, kv_heads, head_dim, case.page_size, case.pages or dtype)
    num_pages = 3 + layout.num_pages(2 * case.num_tokens)
    slots_T = torch.randperm((num_pages - 1) * case.page_size, generator=torch.Generator().manual_seed(3))
    slots_T = (slots_T[: case.num_tokens] + case.page_size).to(device)
    positions_T = torch.arange(case.num_tokens, device=device) * 37 + 5
    inv_freq_F = (1e4 ** -(torch.arange(0, head_dim, 2) / head_dim)).to(device)

    found: list[tuple[Tensor, Tensor]] = []
    for passes in (make(heads, head_dim, EPS), TorchPasses(heads, head_dim, EPS)):
        kv = PagedKv(layout, num_pages, device)
        kv.layer(1).fill_(7.0)
        rotation = passes.rotation(positions_T, inv_freq_F)
        q_THD = passes.place(qkv, norm_ND, rotation, kv, 1, kv.token_rows(slots_T))
        assert not kv.layer(0).any(), "another layer was written"
        found.append((q_THD.cpu().float(), kv.layer(1).cpu().float()))

    (q_THD, pages), (wanted_q_THD, wanted_pages) = found
    assert q_THD.shape == (case.num_tokens, heads, head_dim)
    close = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]  # a rounding or two of numbers below four
    torch.testing.assert_close(q_THD, wanted_q_THD, atol=close, rtol=close)
    close = close if case.pages is None else 3e-2
    torch.testing.assert_close(pages, wanted_pages, atol=close, rtol=close)
    assert (pages[:, 1] == wanted_pages[:, 1]).all(), "V is only copied"
    assert ((pages == 7.0) == (wanted_pages == 7.0)).all(), "other slots were written"


def check_norms(make: MakePasses, num_tokens: int, width: int, dtype: str, device: torch.device) -> None:
    """`rms_norm` and `added_norm` beside TorchPasses, and these beside the formula in float64: the sum bit for bit,
    norms up to a rounding; numbers of all sizes, and rows that are not finite. Weights are those of the rows' type, and
    float32 ones that are a sum with 1."""
    own_E = numbers(7, width, dtype=dtype, device=device)
    for weight_E in (own_E, 1.0 + own_E.float()):
        _check_norms(make, num_tokens, weight_E, dtype)


def _check_norms(make: MakePasses, num_tokens: int, weight_E: Tensor, dtype: str) -> None:
    width, device = weight_E.numel(), weight_E.device
    residual_TE, y_TE = (8 * numbers(seed, num_tokens, width, dtype=dtype, device=device) for seed in (5, 6))
    if num_tokens > 2:
        residual_TE[0] *= 1e-3
        y_TE[0] *= 1e-3
        residual_TE[1], y_TE[1, 0] = 0.0, torch.nan
        residual_TE[2], y_TE[2] = 0.0, 0.0
    if num_tokens > 3:
        y_TE[3, width // 2] = torch.inf

    mine, plain = make(1, 2, EPS), TorchPasses(1, 2, EPS)
    sum_TE, normed_TE = mine.added_norm(residual_TE, y_TE, weight_E)
    wanted_sum_TE, wanted_TE = plain.added_norm(residual_TE, y_TE, weight_E)
    assert sum_TE.dtype == normed_TE.dtype == residual_TE.dtype
    torch.testing.assert_close(sum_TE, wanted_sum_TE, atol=0, rtol=0, equal_nan=True)
    assert num_tokens < 3 or wanted_TE.isnan().all(-1).tolist()[:3] == [False, True, False], "rows are not apart"

    one_rounding = {"float32": 1e-6, "float16": 2**-10, "bfloat16": 2**-7}[dtype]
    x_TE = wanted_sum_TE.double()
    formula_TE = x_TE * (x_TE.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight_E.double()
    torch.testing.assert_close(wanted_TE, formula_TE.to(wanted_TE.dtype), atol=1e-7, rtol=one_rounding, equal_nan=True)
    for found_TE in (normed_TE, mine.rms_norm(wanted_sum_TE, weight_E)):
        assert found_TE.shape == (num_tokens, width)
        torch.testing.assert_close(found_TE, wanted_TE, atol=1e-7, rtol=one_rounding, equal_nan=True)


def check_gated(make: MakePasses, num_tokens: int, width: int, dtype: str, device: torch.device) -> None:
    """Side by side and apart, beside TorchPasses; and extreme gates."""
    both = 4 * numbers(4, num_tokens, 2 * width, dtype=dtype, device=device)
    if num_tokens:
        both[0, 0], both[0, width] = -60_000.0, 1.0  # exp overflows
    wanted_TI = TorchPasses(1, 2, EPS).gated((both.clone(),)).cpu().float()
    close = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for gate_up in ((both,), tuple(half.contiguous() for half in both.chunk(2, dim=-1))):
        found_TI = make(1, 2, EPS).gated(gate_up)
        assert found_TI.shape == (num_tokens, width)
        torch.testing.assert_close(found_TI.cpu().float(), wanted_TI, atol=close, rtol=close)
