"""The passes of a layer on a GPU in Triton: one kernel where torch's operations take a dozen.

    rms_norm     a program takes one token
    added_norm   the same, and the addition before it
    place        a program takes a few heads of one token: norm, rotation, K and V to their pages
    gated        a program takes a piece of one token's gate and up

They round where TorchPasses round.
Shapes: T tokens, E hidden, H query heads, K kv heads, D head_dim, I intermediate, B heads of a program.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.paged_kv import PagedKv
from model.passes import Rotation, Rows, TorchPasses

NUMBERS: Final = 1024  # of a program: eight for each thread of four warps
WARP_NUMBERS: Final = 256  # of a row whose norm a program computes: eight for each thread
MOST_WARPS: Final = 16


@dataclass(frozen=True)
class TritonPasses(TorchPasses):
    """Passes for a GPU. The rotation's angles are torch's."""

    def rms_norm(self, x_TE: Tensor, weight_E: Tensor) -> Tensor:
        """See Passes."""
        x_TE = x_TE.contiguous()
        out_TE = torch.empty_like(x_TE)
        if x_TE.shape[0]:  # no kernel without programs
            rms_norm_kernel[(x_TE.shape[0],)](x_TE, weight_E, out_TE, self.eps, **row_sizes(x_TE.shape[1]))
        return out_TE

    def added_norm(self, residual_TE: Tensor, y_TE: Tensor, weight_E: Tensor) -> tuple[Tensor, Tensor]:
        """One pass over both; see Passes."""
        residual_TE, y_TE = residual_TE.contiguous(), y_TE.contiguous()
        assert residual_TE.shape == y_TE.shape and residual_TE.dtype == y_TE.dtype
        sum_TE, out_TE = torch.empty_like(y_TE), torch.empty_like(y_TE)
        if y_TE.shape[0]:
            tensors = residual_TE, y_TE, weight_E, sum_TE, out_TE
            added_norm_kernel[(y_TE.shape[0],)](*tensors, self.eps, **row_sizes(y_TE.shape[1]))
        return sum_TE, out_TE

    def place(
        self,
        qkv: tuple[Tensor, ...],
        norm_ND: Tensor | None,
        rotation: Rotation,
        kv: PagedKv,
        layer: int,
        rows: Rows,
    ) -> Tensor:
        """See Passes."""
        qkv_TN = qkv[0] if len(qkv) == 1 else torch.cat(qkv, dim=-1)
        num_tokens, pages = qkv_TN.shape[0], kv.layer(layer)
        num_kv_heads = pages.shape[-2]
        q_THD = qkv_TN.new_empty(num_tokens, self.num_heads, self.head_dim)
        if num_tokens == 0:  # no kernel without programs
            return q_THD

        assert qkv_TN.is_contiguous() and pages.is_contiguous()
        padded_dim = int(triton.next_power_of_2(self.head_dim))
        heads = max(1, NUMBERS // padded_dim)
        place_kernel[(num_tokens, triton.cdiv(self.num_heads + 2 * num_kv_heads, heads))](
            qkv_TN,
            qkv_TN if norm_ND is None else norm_ND,
            *rotation,
            *rows,
            q_THD,
            pages,
            self.eps,
            NORMS=norm_ND is not None,
            HEADS=self.num_heads,
            KV_HEADS=num_kv_heads,
            HEAD_DIM=self.head_dim,
            PADDED_DIM=padded_dim,
            BLOCK=heads,
        )
        return q_THD

    def gated(self, gate_up: tuple[Tensor, ...]) -> Tensor:
        """See Passes."""
        both = gate_up[0] if len(gate_up) == 1 else torch.cat(gate_up, dim=-1)
        num_tokens, width = both.shape[0], both.shape[1] // 2
        out_TI = both.new_empty(num_tokens, width)
        if num_tokens:
            assert both.is_contiguous()
            gated_kernel[(num_tokens, triton.cdiv(width, NUMBERS))](both, out_TI, WIDTH=width, BLOCK=NUMBERS)
        return out_TI


def row_sizes(width: int) -> dict[str, int]:
    """How a kernel is launched whose programs take whole rows of `width` numbers."""
    block = int(triton.next_power_of_2(width))
    return {"WIDTH": width, "BLOCK": block, "num_warps": max(1, min(MOST_WARPS, block // WARP_NUMBERS))}


def _normed_row(x: tl.tensor, weight: tl.tensor, eps: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """The norm of a row in float32, which has zeros behind its numbers."""
    return x * tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps) * weight.to(tl.float32)


_normed: Any = triton.jit(_normed_row)


def _rms_norm(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program t norms row t."""
    column = tl.arange(0, BLOCK)
    is_inside = column < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    x = tl.load(x_ptr + at, mask=is_inside, other=0.0)
    weight = tl.load(weight_ptr + column, mask=is_inside, other=0.0)
    tl.store(out_ptr + at, _normed(x.to(tl.float32), weight, eps, WIDTH).to(x.dtype), mask=is_inside)


def _added_norm(
    residual_ptr: tl.tensor,
    y_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    sum_ptr: tl.tensor,
    out_ptr: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program t adds row t of `y_ptr` to that of `residual_ptr`, and norms the sum as it is written: rounded."""
    column = tl.arange(0, BLOCK)
    is_inside = column < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    residual = tl.load(residual_ptr + at, mask=is_inside, other=0.0)
    y = tl.load(y_ptr + at, mask=is_inside, other=0.0)
    weight = tl.load(weight_ptr + column, mask=is_inside, other=0.0)
    added = (residual.to(tl.float32) + y.to(tl.float32)).to(y.dtype)
    tl.store(sum_ptr + at, added, mask=is_inside)
    tl.store(out_ptr + at, _normed(added.to(tl.float32), weight, eps, WIDTH).to(y.dtype), mask=is_inside)


def _place(
    qkv_ptr: tl.tensor,
    norm_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    k_rows_ptr: tl.tensor,
    v_rows_ptr: tl.tensor,
    q_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    eps: tl.tensor,
    NORMS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Heads lie side by side: those of q, then of k, then of v. `qkv_ptr` is (T, H + 2K, D), `cos_ptr` and `sin_ptr`
    (T, D), the sine signed. Pairs are (d, d + D/2)."""
    token = tl.program_id(0).to(tl.int64)
    head_B = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dim_D = tl.arange(0, PADDED_DIM)
    other_D = (dim_D + HEAD_DIM // 2) % HEAD_DIM
    mask_BD = (head_B < HEADS + 2 * KV_HEADS)[:, None] & (dim_D < HEAD_DIM)[None, :]
    is_rotated_B = head_B < HEADS + KV_HEADS

    qkv_ptr += token * (HEADS + 2 * KV_HEADS) * HEAD_DIM
    at_BD = head_B[:, None] * HEAD_DIM + dim_D[None, :]
    other_at_BD = head_B[:, None] * HEAD_DIM + other_D[None, :]
    own_BD = tl.load(qkv_ptr + at_BD, mask=mask_BD, other=0.0)
    x_BD = own_BD.to(tl.float32)
    turned_BD = tl.load(qkv_ptr + other_at_BD, mask=mask_BD, other=0.0).to(tl.float32)

    if NORMS:
        scale_B1 = tl.rsqrt(tl.sum(x_BD * x_BD, 1) / HEAD_DIM + eps)[:, None]
        has_norm_BD = mask_BD & is_rotated_B[:, None]
        norm_BD = tl.load(norm_ptr + at_BD, mask=has_norm_BD, other=0.0).to(tl.float32)
        other_norm_BD = tl.load(norm_ptr + other_at_BD, mask=has_norm_BD, other=0.0).to(tl.float32)
        x_BD = (x_BD * scale_B1).to(own_BD.dtype).to(tl.float32) * norm_BD
        x_BD = x_BD.to(own_BD.dtype).to(tl.float32)
        turned_BD = (turned_BD * scale_B1).to(own_BD.dtype).to(tl.float32) * other_norm_BD
        turned_BD = turned_BD.to(own_BD.dtype).to(tl.float32)

    is_dim_D = dim_D < HEAD_DIM
    cos_D = tl.load(cos_ptr + token * HEAD_DIM + dim_D, mask=is_dim_D, other=0.0)
    sin_D = tl.load(sin_ptr + token * HEAD_DIM + dim_D, mask=is_dim_D, other=0.0)
    rotated_BD = x_BD * cos_D[None, :] + turned_BD * sin_D[None, :]
    out_BD = tl.where(is_rotated_B[:, None], rotated_BD.to(own_BD.dtype), own_BD)

    is_query_B1 = (head_B < HEADS)[:, None]
    tl.store(q_ptr + token * HEADS * HEAD_DIM + at_BD, out_BD, mask=mask_BD & is_query_B1)
    row_B = tl.where(is_rotated_B, tl.load(k_rows_ptr + token), tl.load(v_rows_ptr + token))
    kv_at_BD = (row_B * KV_HEADS + (head_B - HEADS) % KV_HEADS)[:, None] * HEAD_DIM + dim_D[None, :]
    tl.store(kv_ptr + kv_at_BD, out_BD.to(kv_ptr.dtype.element_ty), mask=mask_BD & (head_B >= HEADS)[:, None])


def _gated(both_ptr: tl.tensor, out_ptr: tl.tensor, WIDTH: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """`both_ptr` is (T, 2I): a token's gate, then its up."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column < WIDTH
    gate_ptr = both_ptr + token * 2 * WIDTH + column
    gate = tl.load(gate_ptr, mask=is_inside, other=0.0)
    up = tl.load(gate_ptr + WIDTH, mask=is_inside, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    gated = silu.to(tl.float32) * up.to(tl.float32)
    tl.store(out_ptr + token * WIDTH + column, gated.to(gate.dtype), mask=is_inside)


rms_norm_kernel: Any = triton.jit(_rms_norm)
added_norm_kernel: Any = triton.jit(_added_norm)
place_kernel: Any = triton.jit(_place)
gated_kernel: Any = triton.jit(_gated)
