"""Linear layers: y = x @ weight.T + bias, plain, packed for oneDNN, or several merged into one product.

cpu_products.py has another one.

Shapes: T tokens, I inputs, O outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from model.passes import Passes
from model.rows import Rows, joined, whole

_PACKED_FOR_ROWS: Final = 16  # a hint to oneDNN; other numbers of rows run as well


class AnyLinear(Protocol):
    """y = x @ weight.T + bias, however the weight lies in memory."""

    def __call__(self, x_TI: Tensor) -> Tensor:
        """y (T, O)."""
        ...

    def added_to(self, residual_TO: Tensor, x_TI: Tensor) -> Tensor:
        """residual + y (T, O)."""
        ...

    def added_norm(self, residual_TO: Tensor, x_TI: Tensor, passes: Passes, weight_O: Tensor) -> tuple[Tensor, Tensor]:
        """residual + y, and the norm of this sum: (T, O) each. Both are those of `added_to` and `passes.rms_norm`."""
        ...


@dataclass(frozen=True)
class Unpacked:
    """A linear before it is packed: its weight may be read a few rows at a time."""

    weight_OI: Rows
    bias_O: Tensor | None = None


@dataclass(frozen=True)
class Linear(Unpacked):
    """y = x @ weight.T + bias."""

    weight_OI: Tensor

    def __call__(self, x_TI: Tensor) -> Tensor:
        return F.linear(x_TI, self.weight_OI, self.bias_O)

    def added_to(self, residual_TO: Tensor, x_TI: Tensor) -> Tensor:
        """residual + y."""
        return residual_TO + self(x_TI)

    def added_norm(self, residual_TO: Tensor, x_TI: Tensor, passes: Passes, weight_O: Tensor) -> tuple[Tensor, Tensor]:
        """The addition is a part of the pass; see AnyLinear."""
        return passes.added_norm(residual_TO, self(x_TI), weight_O)


@dataclass(frozen=True)
class PackedLinear:
    """A Linear whose weight is laid out once for oneDNN's kernels, not at every call.

    The weight is a copy, so the workers of a host do not share it.
    """

    packed: Tensor
    bias_O: Tensor | None

    def __call__(self, x_TI: Tensor) -> Tensor:
        y_TO: Tensor = torch.ops.mkldnn._linear_pointwise.default(x_TI, self.packed, self.bias_O, "none", [], "")
        return y_TO

    def added_to(self, residual_TO: Tensor, x_TI: Tensor) -> Tensor:
        """residual + y in one pass, rounded once."""
        y_TO: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x_TI, residual_TO, self.packed, self.bias_O, "add")
        return y_TO

    def added_norm(self, residual_TO: Tensor, x_TI: Tensor, passes: Passes, weight_O: Tensor) -> tuple[Tensor, Tensor]:
        """The addition is a part of the product; see AnyLinear."""
        sum_TO = self.added_to(residual_TO, x_TI)
        return sum_TO, passes.rms_norm(sum_TO, weight_O)


@dataclass(frozen=True)
class Pack:
    """How linears are made that compute faster, or the same for any number of rows."""

    make: Callable[[Unpacked], AnyLinear]
    copies: bool = True  # weights into this worker's own memory, laid out in another way


def can_pack(weight: Tensor) -> bool:
    """Whether this torch and CPU can pack this weight."""
    known = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    kind = weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and has_fast_bfloat16())
    return known and weight.device.type == "cpu" and kind


def has_fast_bfloat16() -> bool:
    """Whether oneDNN has fast bfloat16 products on this CPU. Without them float32 is far faster."""
    known = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(known is not None and known())


def pack(linear: Unpacked) -> AnyLinear:
    """`linear` packed, if that is possible."""
    weight_OI = whole(linear.weight_OI)
    if not can_pack(weight_OI):
        return Linear(weight_OI, linear.bias_O)
    weight_OI = weight_OI.contiguous()  # a share of a weight's columns is not
    return PackedLinear(torch.ops.mkldnn._reorder_linear_weight(weight_OI, _PACKED_FOR_ROWS), linear.bias_O)


@dataclass(frozen=True)
class ParallelLinears:
    """Several linears of one input (q, k, v; gate, up), merged into one product or left apart.

    Merging copies the weights. On a device, or packed, they are copied anyway, and one large product is faster.
    Otherwise they stay views over the mapped checkpoint, and the workers of a host share them.
    """

    linears: tuple[AnyLinear, ...]

    def __call__(self, x_TI: Tensor) -> tuple[Tensor, ...]:
        """One product for all, or one for each."""
        return tuple([linear(x_TI) for linear in self.linears])


def parallel_linears(linears: Sequence[Unpacked], *, merge: bool, pack: Pack | None = None) -> ParallelLinears:
    """Joins linears, of which all or none have a bias. `merge` merges them; `pack` packs them, or the merged one."""
    if not merge:
        return ParallelLinears(tuple(pack.make(linear) if pack else unpacked(linear) for linear in linears))
    biases = [linear.bias_O for linear in linears if linear.bias_O is not None]
    assert len(biases) in (0, len(linears))
    weights, bias_O = [linear.weight_OI for linear in linears], torch.cat(biases) if biases else None
    if pack is not None:
        return ParallelLinears((pack.make(Unpacked(joined(weights), bias_O)),))
    return ParallelLinears((Linear(torch.cat(list(map(whole, weights))), bias_O),))


def unpacked(linear: Unpacked) -> Linear:
    """`linear` as it is, with its weight in memory."""
    return Linear(whole(linear.weight_OI), linear.bias_O)
