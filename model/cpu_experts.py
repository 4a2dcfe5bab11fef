"""A mixture of experts in one call of C (cpu_experts.c): the router, the products of the experts that are hit, the sum.

A row has the same bits in any batch and on any number of threads.
Shapes: T tokens, E hidden, X experts, K experts of a token.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model.cpu_kernels import CpuKernels
from model.cpu_products import CLinear, CpuLinear, for_c
from model.cpu_structs import address, check_struct
from model.experts import Experts
from model.mlp import Clamped, Mlp
from model.passes import Passes
from protocol.messages_group import StepShape

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
ALIGNED = 64  # bytes: where the memory begins that C works in


class CMlp(ctypes.Structure):
    """`mlp` of cpu_experts.h. It is valid as long as the tensors live that it was made of."""

    _fields_ = (
        *((name, CLinear) for name in ("gate", "up", "down")),
        ("limit", ctypes.c_float),
        ("alpha", ctypes.c_float),
    )

    @classmethod
    def of(cls, linears: Sequence[CpuLinear], gating: Clamped | None = None) -> "CMlp":
        """An MLP of gate and up, merged or not, and down. Without a `gating` it is silu(gate) * up."""
        gate, *up, down = (linear.in_c for linear in linears)
        of_gate = (gating.limit, gating.alpha) if gating else (0.0, 0.0)
        return cls(gate, *(up or [CLinear()]), down, *of_gate)


class CMixture(ctypes.Structure):
    """`mixture` of cpu_experts.h. It is valid as long as the object lives that it was made of."""

    _fields_ = (
        ("router", CLinear),
        ("choice_bias", _POINTER),
        *((name, _LONG) for name in ("num_chosen", "sigmoid", "num_groups", "num_chosen_groups", "normalised")),
        ("scale", ctypes.c_float),
        ("experts", _POINTER),
        ("shared", _POINTER),
    )


@dataclass(frozen=True)
class CpuExperts:
    """A feed, or a rank's share of one, computed in C. `in_c` points to what `kept` holds."""

    kernels: CpuKernels
    in_c: CMixture
    kept: tuple[Any, ...]
    dtype: torch.dtype  # of tokens
    is_alone = True
    linears = None

    @classmethod
    def of(cls, kernels: CpuKernels, mixture: Experts) -> "CpuExperts | None":
        """The same mixture, if C has products with such weights. InternalError if C has another form of the structs."""
        shares = [*mixture.experts, *filter(None, [mixture.shared])]
        mlps = [share for share in shares if isinstance(share, Mlp) and _is_gated_in_c(share)]
        own = [linears for mlp in mlps if (linears := for_c((*mlp.gate_up.linears, mlp.down)))]
        if len(own) < len(shares):
            return None
        check_struct(kernels.library, "mlp", CMlp)
        check_struct(kernels.library, "mixture", CMixture)

        config, router, count = mixture.router.config, mixture.router.weight_XE.float(), len(mixture.experts)
        choice_bias_X, bias_X = mixture.router.choice_bias_X, mixture.router.bias_X
        bias_X = None if bias_X is None else bias_X.float()
        in_c = [CMlp.of(linears, _clamped(mlp)) for linears, mlp in zip(own, mlps, strict=True)]
        experts, shared = (CMlp * count)(*in_c[:count]), in_c[count] if mixture.shared else None
        mixed = CMixture(
            CLinear(router.data_ptr(), address(bias_X), router.shape[1], count, router.stride(0)),
            address(choice_bias_X),
            config.num_chosen, config.scores == "sigmoid", config.num_groups, config.num_chosen_groups,
            config.normalised, config.scale, ctypes.addressof(experts),
            None if shared is None else ctypes.addressof(shared),
        )  # fmt: skip
        return cls(kernels, mixed, (router, bias_X, choice_bias_X, experts, shared, own), own[0][0].dtype)

    def __call__(self, x_NE: Tensor, passes: Passes) -> Tensor:
        """The weighted sum of each token's experts, and the shared one; see Share."""
        return self._mixed(x_NE, None)

    def result(self, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """See Feed."""
        return self._mixed(x_TE, None)

    def added_to(self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """See Feed."""
        return self._mixed(x_TE, residual_TE.contiguous())

    def added_norm(
        self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None, weight_E: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See Feed."""
        sum_TE = self._mixed(x_TE, residual_TE.contiguous())
        return sum_TE, passes.rms_norm(sum_TE, weight_E)

    def route(self, x_TE: Tensor) -> tuple[Tensor, Tensor]:
        """The ids of each token's experts, ascending, and their weights, (T, K) each; see Router. For tests."""
        rows, chosen = x_TE.shape[0], int(self.in_c.num_chosen)
        chosen_TK, weights_TK = torch.empty((rows, chosen), dtype=torch.int64), torch.empty((rows, chosen))
        x_TE, room = self._checked(x_TE), self.room(rows)
        self.kernels.library.route(
            ctypes.byref(self.in_c), _POINTER(x_TE.data_ptr()), _POINTER(chosen_TK.data_ptr()),
            _POINTER(weights_TK.data_ptr()), _POINTER(aligned(room)), _LONG(rows),
            _INT(self.kernels.threads.for_rows(rows)),
        )  # fmt: skip
        return chosen_TK, weights_TK

    def room_bytes(self, rows: int) -> int:
        """Bytes of memory that C works in, for so many rows. Its start is a multiple of ALIGNED."""
        count = self.kernels.library.mix_bytes
        count.restype = _LONG
        return int(count(ctypes.byref(self.in_c), _LONG(rows)))

    def room(self, rows: int) -> Tensor:
        """That memory, and as much more as aligning it takes."""
        return torch.empty(self.room_bytes(rows) + ALIGNED, dtype=torch.uint8)

    def _mixed(self, x_TE: Tensor, residual_TE: Tensor | None) -> Tensor:
        rows = x_TE.shape[0]
        x_TE, room, out_TE = self._checked(x_TE), self.room(rows), torch.empty_like(x_TE)
        self.kernels.library.mix(
            ctypes.byref(self.in_c), _POINTER(x_TE.data_ptr()),
            _POINTER(None if residual_TE is None else residual_TE.data_ptr()), _POINTER(out_TE.data_ptr()),
            _POINTER(aligned(room)), _LONG(rows), _INT(self.kernels.threads.for_rows(rows)),
        )  # fmt: skip
        return out_TE

    def _checked(self, x_TE: Tensor) -> Tensor:
        assert x_TE.dtype == self.dtype and x_TE.dim() == 2 and x_TE.shape[1] == self.in_c.router.inputs
        return x_TE.contiguous()


def _clamped(mlp: Mlp) -> Clamped | None:
    return mlp.gating if isinstance(mlp.gating, Clamped) else None


def _is_gated_in_c(mlp: Mlp) -> bool:
    return mlp.gating is None or _clamped(mlp) is not None


def aligned(room: Tensor) -> int:
    """The first address within `room` that is a multiple of ALIGNED."""
    return -(-room.data_ptr() // ALIGNED) * ALIGNED
