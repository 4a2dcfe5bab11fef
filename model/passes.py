"""The steps of a layer between its products: norms, rotation, writing K and V, the gate. Here with torch's operations.

`cpu_kernels.py` does the same with one pass over memory each.
Shapes: T tokens, E hidden, I intermediate, H query heads, K kv heads, N = H + K, D head_dim.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from model.paged_kv import PagedKv
from model.rope import rotate

Rows = tuple[Tensor, Tensor]  # where each token's K and V go: PagedKv.token_rows
Rotation = tuple[Tensor, Tensor]  # cos and sin of every token's angles, float32; for `place` of the same passes


class Passes(Protocol):
    """The passes of one model. Numerics follow transformers."""

    def rms_norm(self, x_TE: Tensor, weight_E: Tensor) -> Tensor:
        """Root-mean-square norm of each row (Zhang and Sennrich 2019)."""
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
        return F.rms_norm(x_TE, weight_E.shape, weight_E, self.eps)

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
