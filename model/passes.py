"""The steps of a layer between its products: norms, rotation, writing K and V, the gate. Here with torch's operations.

`cpu_kernels.py` and `passes_triton.py` do the same with one pass over memory each. Rotary position embedding is that of
Su et al. 2021 (RoFormer), with the llama3 rescaling as published with Llama 3.1.
Shapes: T tokens, E hidden, I intermediate, H query heads, K kv heads, N = H + K, D head_dim, F = D / 2 frequencies.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from model.paged_kv import PagedKv
from runtime.model_parts import RopeConfig

Rows = tuple[Tensor, Tensor]  # where each token's K and V go: PagedKv.token_rows
Rotation = tuple[Tensor, Tensor]  # cos and sin of every token's angles, float32; for `place` of the same passes


class Passes(Protocol):
    """The passes of one model. Numerics follow transformers."""

    def rms_norm(self, x_TE: Tensor, weight_E: Tensor) -> Tensor:
        """Root-mean-square norm of each row (Zhang and Sennrich 2019). `weight_E` may be float32 beside other rows."""
        ...

    def added_norm(self, residual_TE: Tensor, y_TE: Tensor, weight_E: Tensor) -> tuple[Tensor, Tensor]:
        """residual + y, rounded; and `rms_norm` of this sum. `AnyLinear.added_norm` decides whether this pass adds."""
        ...

    def rotation(self, positions_T: Tensor, inv_freq_F: Tensor) -> Rotation:
        """cos and sin of the positions, made once per forward for every layer's `place`."""
        ...

    def place(
        self,
        qkv: tuple[Tensor, ...],
        norm_ND: Tensor | None,
        rotation: Rotation,
        kv: PagedKv,
        layer: int,
        rows: Rows,
    ) -> Tensor:
        """Norms and rotates q and k, writes K and V to their rows of the layer's pages, and returns q (T, H, D).

        `qkv` is q, k and v, (T, heads * D) each, or the three side by side. `norm_ND` is None in models without a q/k
        norm.
        """
        ...

    def gated(self, gate_up: tuple[Tensor, ...]) -> Tensor:
        """silu(gate) * up (Shazeer 2020), (T, I). `gate_up` is gate and up, or the two side by side."""
        ...


@dataclass(frozen=True)
class TorchPasses:
    """Passes for every device."""

    num_heads: int
    head_dim: int
    eps: float

    def rms_norm(self, x_TE: Tensor, weight_E: Tensor) -> Tensor:
        """Computed in float32; see Passes."""
        return rms_norm(x_TE, weight_E, self.eps)

    def added_norm(self, residual_TE: Tensor, y_TE: Tensor, weight_E: Tensor) -> tuple[Tensor, Tensor]:
        """See Passes."""
        sum_TE = residual_TE + y_TE
        return sum_TE, self.rms_norm(sum_TE, weight_E)

    def rotation(self, positions_T: Tensor, inv_freq_F: Tensor) -> Rotation:
        """(T, 1, D) each, the sine signed; see Passes."""
        angles_T1F = positions_T.to(torch.float32)[:, None, None] * inv_freq_F
        cos_T1F, sin_T1F = angles_T1F.cos(), angles_T1F.sin()
        return torch.cat((cos_T1F, cos_T1F), dim=-1), torch.cat((-sin_T1F, sin_T1F), dim=-1)

    def place(
        self,
        qkv: tuple[Tensor, ...],
        norm_ND: Tensor | None,
        rotation: Rotation,
        kv: PagedKv,
        layer: int,
        rows: Rows,
    ) -> Tensor:
        """One pass norms and rotates queries and keys together; see Passes."""
        if len(qkv) == 1:
            v_size = kv.layer(layer).shape[-2] * self.head_dim
            qk_TN, v_TN = qkv[0][:, :-v_size], qkv[0][:, -v_size:]
        else:
            qk_TN, v_TN = torch.cat(qkv[:2], dim=-1), qkv[2]

        qk_TND = qk_TN.unflatten(-1, (-1, self.head_dim))
        if norm_ND is not None:
            qk_TND = F.rms_norm(qk_TND, (self.head_dim,), None, self.eps) * norm_ND
        qk_TND = rotate(qk_TND, *rotation)
        kv.write(layer, rows, qk_TND[:, self.num_heads :].flatten(1), v_TN)
        return qk_TND[:, : self.num_heads]

    def gated(self, gate_up: tuple[Tensor, ...]) -> Tensor:
        """See Passes."""
        gate_TI, up_TI = gate_up if len(gate_up) > 1 else gate_up[0].chunk(2, dim=-1)
        return F.silu(gate_TI).mul_(up_TI)


def rms_norm(x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """See Passes.rms_norm."""
    wide_TE = x_TE if x_TE.dtype == weight_E.dtype else x_TE.to(weight_E.dtype)
    return F.rms_norm(wide_TE, weight_E.shape, weight_E, eps).to(x_TE.dtype)


class Rope(NamedTuple):
    """The numbers of a rope: each pair's angle per position, and the factor of all cosines and sines."""

    inv_freq_F: Tensor
    factor: float = 1.0

    @classmethod
    def of(cls, rope: RopeConfig, head_dim: int, device: torch.device) -> "Rope":
        """That of this configuration."""
        return cls(inverse_frequencies(rope, head_dim).to(device), rope.attention_factor)

    def rotation(self, positions_T: Tensor, passes: Passes) -> Rotation:
        """cos and sin of the positions."""
        cos, sin = passes.rotation(positions_T, self.inv_freq_F)
        return (cos, sin) if self.factor == 1.0 else (cos * self.factor, sin * self.factor)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angle per position of each pair of dimensions: (F,) float32. Pairs that are not rotated are last, and have 0."""
    rotated = rope.num_rotated or head_dim
    return F.pad(_frequencies(rope, rotated), (0, (head_dim - rotated) // 2))


def rotation_order(rope: RopeConfig, head_dim: int) -> list[int] | None:
    """Where a head's dimensions come from, so that pairs are (d, d + D/2) although only the first are rotated, by their
    halves; None: as they are. Queries and keys in one order have the products that they have in any other."""
    if (rotated := rope.num_rotated) is None:
        return None
    half, rest = rotated // 2, rotated + (head_dim - rotated) // 2
    ranges = ((0, half), (rotated, rest), (half, rotated), (rest, head_dim))
    return [dimension for start, end in ranges for dimension in range(start, end)]


def _frequencies(rope: RopeConfig, rotated: int) -> Tensor:
    inv_freq_F = 1.0 / rope.theta ** (torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated)
    if rope.kind == "linear":
        return inv_freq_F / rope.factor
    if rope.kind == "default":
        return inv_freq_F
    if rope.kind == "yarn":
        stretched_F = _stretched(rope, rotated)
        return inv_freq_F / rope.factor * stretched_F + inv_freq_F * (1 - stretched_F)

    # llama3: stretch long wavelengths by `factor`, keep short ones, blend those between.
    wavelength_F = 2 * math.pi / inv_freq_F
    rotations_F = rope.original_max_position_embeddings / wavelength_F
    blend_F = (rotations_F - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend_F = blend_F.clamp(0.0, 1.0)
    return (1 - blend_F) * inv_freq_F / rope.factor + blend_F * inv_freq_F


def _stretched(rope: RopeConfig, rotated: int) -> Tensor:
    """Yarn: how much each pair is stretched, 0 to 1, in a ramp between two pairs."""

    def pair(turns: float) -> float:
        """The pair that turns so often within the original context."""
        original = rope.original_max_position_embeddings
        return rotated * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    ramp_F = (torch.arange(rotated // 2, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    return ramp_F.clamp(0, 1)


def rotate(x_TND: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    """`x_TND` rotated by its position. Computed in float32, returned in x's dtype. Pairs are (d, d + D/2)."""
    x_float = x_TND.float()
    half_turned = x_float.roll(x_float.shape[-1] // 2, -1)
    return torch.addcmul(x_float * cos_T1D, half_turned, sin_T1D).to(x_TND.dtype)
