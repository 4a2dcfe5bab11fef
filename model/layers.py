"""The few operations a decoder is made of, as functions and small values. Numerics follow transformers.

What they do not know: which architecture they serve, pages, or batches. Shapes: T tokens, I inputs, O outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Linear:
    """y = x @ weight.T + bias."""

    weight_OI: Tensor
    bias_O: Tensor | None = None

    def __call__(self, x_TI: Tensor) -> Tensor:
        return F.linear(x_TI, self.weight_OI, self.bias_O)


@dataclass(frozen=True)
class ParallelLinears:
    """Several linears of one input (q, k, v; gate, up): merged into one product, or left apart.

    Merging copies the weights. On a device they are copied there anyway, and one large product is faster; in host
    memory they stay views over the mapped checkpoint, so that the workers of a host share them.
    """

    linears: tuple[Linear, ...]
    split: tuple[int, ...]  # output sizes

    def __call__(self, x_TI: Tensor) -> tuple[Tensor, ...]:
        if len(self.linears) == 1:
            return torch.split(self.linears[0](x_TI), list(self.split), dim=-1)
        return tuple(linear(x_TI) for linear in self.linears)


def parallel_linears(linears: Sequence[Linear], *, merge: bool) -> ParallelLinears:
    """The linears as one step. All or none of them have a bias."""
    split = tuple(linear.weight_OI.shape[0] for linear in linears)
    if not merge:
        return ParallelLinears(tuple(linears), split)
    biases = [linear.bias_O for linear in linears if linear.bias_O is not None]
    assert len(biases) in (0, len(linears))
    merged = Linear(torch.cat([linear.weight_OI for linear in linears]), torch.cat(biases) if biases else None)
    return ParallelLinears((merged,), split)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, in float32 inside (Zhang and Sennrich 2019)."""
    x_float = x.float()
    x_float = x_float * torch.rsqrt(x_float.square().mean(-1, keepdim=True) + eps)
    return weight * x_float.to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020)."""
    return F.silu(gate) * up
