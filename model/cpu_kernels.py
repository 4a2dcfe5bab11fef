"""The passes between products (cpu_kernels.c) and attention of decodes (cpu_attention.c), in C.

Each pass reads and writes memory once; tokens of one row read its pages together.
cpu_build.py builds the library when a model first needs it, for the model's head size and types.
Shapes as in passes.py; F = D / 2 frequencies, B requests that decode, P pages of the longest context.
"""

import ctypes
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from model.cpu_build import MACROS, NoKernels, built_library, macros
from model.cpu_products import CLinear, Threads
from model.cpu_structs import check_struct
from model.paged_kv import PagedKv
from model.passes import Rotation, Rows, rms_norm
from model.scoring import Scoring
from runtime.model_config import ModelConfig

_POINTER, _LONG, _FLOAT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_ARGUMENTS: Final = {
    "rms_norm": [_POINTER] * 3 + [_LONG] * 2 + [_FLOAT, _INT],
    "gated": [_POINTER] * 3 + [_LONG] * 3 + [_INT],
    "rotation": [_POINTER] * 4 + [_LONG, _INT],
    "place": [_POINTER, _LONG] * 3 + [_POINTER, _FLOAT] + [_POINTER] * 6 + [_LONG] * 3 + [_INT],
    "attend": [_POINTER] * 5 + [_LONG] * 4 + [_INT],
    "product": [ctypes.POINTER(CLinear)] + [_POINTER] * 3 + [_LONG, _INT],
}


class CScoring(ctypes.Structure):
    """`scoring` of cpu_kernels.h. It is valid as long as the sinks live."""

    _fields_ = (("sinks", _POINTER), ("window", _LONG), ("scale", _FLOAT))

    @classmethod
    def of(cls, scoring: Scoring) -> "CScoring":
        """The same for C."""
        sinks_H = scoring.sinks_H
        assert sinks_H is None or (sinks_H.dtype == torch.float32 and sinks_H.is_contiguous())
        return cls(None if sinks_H is None else sinks_H.data_ptr(), scoring.window, scoring.scale or 0.0)


class CRequests(ctypes.Structure):
    """`requests` of cpu_kernels.h. It is valid as long as the tensors live that it was made of."""

    _fields_ = (
        *((name, _POINTER) for name in ("tables", "lengths", "positions", "tree_starts", "tree_bits")),
        ("table_stride", _LONG),
    )

    @classmethod
    def of(
        cls, tables_BP: Tensor, lengths_B: Tensor, positions_B: Tensor, tree_mask: tuple[Tensor, Tensor] | None
    ) -> "CRequests":
        """`tree_mask` are the starts and bits of a tree mask, see ModelInput."""
        columns = lengths_B, positions_B, *(tree_mask or ())
        assert tables_BP.stride(1) == 1 and all(column.is_contiguous() for column in columns)
        lengths, positions, *mask = (column.data_ptr() for column in columns)
        starts, bits = mask or (None, None)
        return cls(tables_BP.data_ptr(), lengths, positions, starts, bits, tables_BP.stride(0))


@dataclass(frozen=True)
class CpuKernels:
    """One built library for one model: Passes, and attention of decodes."""

    library: ctypes.CDLL
    threads: Threads
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float

    def rms_norm(self, x_TE: Tensor, weight_E: Tensor) -> Tensor:
        """See Passes."""
        if weight_E.dtype != x_TE.dtype:  # the kernel reads weights of the rows' type
            return rms_norm(x_TE, weight_E, self.eps)
        assert x_TE.is_contiguous()
        out_TE = torch.empty_like(x_TE)
        rows, width = x_TE.shape
        self.library.rms_norm(
            x_TE.data_ptr(), weight_E.data_ptr(), out_TE.data_ptr(), rows, width, self.eps, self.threads.for_rows(rows)
        )
        return out_TE

    def added_norm(self, residual_TE: Tensor, y_TE: Tensor, weight_E: Tensor) -> tuple[Tensor, Tensor]:
        """See Passes."""
        sum_TE = residual_TE + y_TE
        return sum_TE, self.rms_norm(sum_TE, weight_E)

    def rotation(self, positions_T: Tensor, inv_freq_F: Tensor) -> Rotation:
        """(T, F) each; see Passes."""
        positions_T = positions_T.contiguous()
        assert positions_T.dtype == torch.int64 and inv_freq_F.dtype == torch.float32 and inv_freq_F.is_contiguous()
        assert inv_freq_F.shape == (self.head_dim // 2,)
        tokens = positions_T.shape[0]
        both_2TF = torch.empty((2, tokens, inv_freq_F.shape[0]))
        cos_TF, sin_TF = both_2TF.unbind(0)
        self.library.rotation(
            positions_T.data_ptr(), inv_freq_F.data_ptr(), cos_TF.data_ptr(), sin_TF.data_ptr(), tokens,
            self.threads.for_rows(tokens),
        )  # fmt: skip
        return cos_TF, sin_TF

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
        q, k, v = self._parts(qkv, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim)
        cos, sin = rotation
        assert cos.is_contiguous() and sin.is_contiguous()
        tokens = qkv[0].shape[0]
        out_THD = torch.empty((tokens, self.num_heads, self.head_dim), dtype=qkv[0].dtype)
        self.library.place(
            *q, *k, *v, None if norm_ND is None else norm_ND.data_ptr(), self.eps, cos.data_ptr(), sin.data_ptr(),
            rows[0].data_ptr(), rows[1].data_ptr(), out_THD.data_ptr(), kv.layer(layer).data_ptr(),
            tokens, self.num_heads, self.num_kv_heads, self.threads.for_rows(tokens),
        )  # fmt: skip
        return out_THD

    def gated(self, gate_up: tuple[Tensor, ...]) -> Tensor:
        """See Passes."""
        rows, width = gate_up[0].shape
        if len(gate_up) == 1:
            width //= 2
        (gate, stride), (up, _) = self._parts(gate_up, width)
        out_TI = torch.empty((rows, width), dtype=gate_up[0].dtype)
        self.library.gated(gate, up, out_TI.data_ptr(), rows, width, stride, self.threads.for_rows(rows))
        return out_TI

    @property
    def has_products(self) -> bool:
        """Whether the library has products with bfloat16 weights. Rows of float32 need a CPU with AVX2 and FMA, rows of
        bfloat16 one with AVX512's instructions for it."""
        return bool(self.library.has_products())

    def waited_s(self) -> tuple[float, float]:
        """Seconds that callers have taken to wake other threads and to wait for them; those of them that they slept."""
        both = (ctypes.c_int64 * 2)()
        self.library.team_waited(ctypes.byref(both, 0), ctypes.byref(both, 8))
        return both[0] / 1e9, both[1] / 1e9

    def _parts(self, products: tuple[Tensor, ...], *sizes: int) -> list[tuple[int, int]]:
        """(address, elements from row to row) of each product.

        For products side by side in one tensor, `sizes` has the width of each but the last.
        """
        assert all(product.is_contiguous() for product in products)
        if len(products) > 1:
            return [(product.data_ptr(), product.shape[1]) for product in products]
        at, stride, item = products[0].data_ptr(), products[0].shape[1], products[0].element_size()
        return [(at + start * item, stride) for start in accumulate((0, *sizes))]

    def attend(
        self,
        q_BHD: Tensor,
        kv_layer: Tensor,
        requests: CRequests,
        scoring: Scoring,
        out_BHD: Tensor,
    ) -> None:
        """out = softmax(q k / sqrt(D)) v of each request's token over its context, as `scoring` says. Slots behind it,
        before the window, and those that a tree mask hides are not read."""
        assert q_BHD.is_contiguous() and out_BHD.is_contiguous()
        self.library.attend(
            q_BHD.data_ptr(), kv_layer.data_ptr(), ctypes.byref(requests), ctypes.byref(CScoring.of(scoring)),
            out_BHD.data_ptr(), q_BHD.shape[0], self.num_heads, self.num_kv_heads, kv_layer.shape[2],
            self.threads.for_rows(q_BHD.shape[0]),
        )  # fmt: skip


def load_kernels(
    config: ModelConfig, activations: torch.dtype, pages: str, threads: Threads | None = None
) -> CpuKernels:
    """The kernels for a model, built if they are not in the cache. `pages` is the dtype of KV. Raises NoKernels,
    and InternalError if C has another form of a struct.

    `threads`: None: always as many as torch has.
    """
    types = (str(activations).removeprefix("torch."), pages)
    if types not in MACROS:
        raise NoKernels(f"there are none for {activations} with pages of {pages}")

    path = built_library(macros(types, config.head_dim))
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NoKernels(f"{path} cannot be loaded: {error}") from None

    for struct_name, struct in (("linear", CLinear), ("scoring", CScoring), ("requests", CRequests)):
        check_struct(library, struct_name, struct)
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return CpuKernels(
        library, threads or Threads(), config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps
    )
