"""The few operations a decoder is made of, as functions and small values. Numerics follow transformers.

What they do not know: which architecture they serve, pages, or batches. Shapes: T tokens, I inputs, O outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

_PACKED_FOR_ROWS: Final = 16  # a hint; other numbers of rows run as well


@dataclass(frozen=True)
class Linear:
    """y = x @ weight.T + bias."""

    weight_OI: Tensor
    bias_O: Tensor | None = None

    def __call__(self, x_TI: Tensor) -> Tensor:
        return F.linear(x_TI, self.weight_OI, self.bias_O)


@dataclass(frozen=True)
class PackedLinear:
    """The same, with the weight laid out once as oneDNN's kernels want it, instead of at every call.

    In bfloat16 the results are the same to the bit. The weight is a copy: the workers of a host do not share it.
    """

    packed: Tensor
    bias_O: Tensor | None

    def __call__(self, x_TI: Tensor) -> Tensor:
        y_TO: Tensor = torch.ops.mkldnn._linear_pointwise(x_TI, self.packed, self.bias_O, "none", [], "")
        return y_TO


AnyLinear = Linear | PackedLinear


def can_pack(weight: Tensor) -> bool:
    """Whether this torch packs such weights: bfloat16 on a CPU, with oneDNN."""
    known = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return known and weight.device.type == "cpu" and weight.dtype == torch.bfloat16


def pack(linear: Linear) -> AnyLinear:
    """`linear` packed, where that is possible."""
    if not can_pack(linear.weight_OI):
        return linear
    return PackedLinear(torch.ops.mkldnn._reorder_linear_weight(linear.weight_OI, _PACKED_FOR_ROWS), linear.bias_O)


@dataclass(frozen=True)
class ParallelLinears:
    """Several linears of one input (q, k, v; gate, up): merged into one product, or left apart.

    Merging copies the weights. On a device, or packed, they are copied anyway, and one large product is faster;
    otherwise they stay views over the mapped checkpoint, so that the workers of a host share them.
    """

    linears: tuple[AnyLinear, ...]
    split: tuple[int, ...]  # output sizes

    def __call__(self, x_TI: Tensor) -> tuple[Tensor, ...]:
        if len(self.linears) == 1:
            return torch.split(self.linears[0](x_TI), list(self.split), dim=-1)
        return tuple(linear(x_TI) for linear in self.linears)


def parallel_linears(linears: Sequence[Linear], *, merge: bool, packed: bool = False) -> ParallelLinears:
    """The linears as one step, merged if asked for (and then packed, if asked for). All or none have a bias."""
    split = tuple(linear.weight_OI.shape[0] for linear in linears)
    if not merge:
        return ParallelLinears(tuple(linears), split)
    biases = [linear.bias_O for linear in linears if linear.bias_O is not None]
    assert len(biases) in (0, len(linears))
    merged = Linear(torch.cat([linear.weight_OI for linear in linears]), torch.cat(biases) if biases else None)
    return ParallelLinears((pack(merged) if packed else merged,), split)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, in float32 inside (Zhang and Sennrich 2019)."""
    x_float = x.float()
    x_float = x_float * torch.rsqrt(x_float.square().mean(-1, keepdim=True) + eps)
    return weight * x_float.to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020)."""
    return F.silu(gate) * up
