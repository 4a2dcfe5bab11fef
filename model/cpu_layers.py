"""All layers of a forward of decodes in one call of C (cpu_layers.c).

Called one by one from Python, a layer's steps release and take Python's lock ten times, and each time a thread that
schedules may hold it. The results are those of LayerPass.run, bit for bit.
Shapes as in passes.py.
"""

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from model.attention_cpu import CpuPlan
from model.cpu_experts import ALIGNED, CMlp, CpuExperts, aligned
from model.cpu_kernels import CpuKernels, CRequests, CScoring
from model.cpu_products import CLinear, CpuLinear
from model.cpu_structs import address, check_struct
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.scoring import Scoring

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64


class CLayer(ctypes.Structure):
    """`layer` of cpu_layers.h. It is valid as long as the tensors live that it was made of."""

    _fields_ = (
        ("input_norm", _POINTER),
        *((name, CLinear) for name in ("q", "k", "v")),
        ("qk_norm", _POINTER),
        ("by", CScoring),
        ("output", CLinear),
        ("feed_norm", _POINTER),
        ("feed", CMlp),
        ("experts", _POINTER),
    )

    @classmethod
    def of(
        cls,
        input_norm_E: Tensor | None,
        mixer: Sequence[CpuLinear],
        qk_norm_ND: Tensor | None,
        scoring: Scoring,
        feed_norm_E: Tensor,
        feed: Sequence[CpuLinear] | CpuExperts,
    ) -> "CLayer":
        """A layer with these norms and this scoring. `mixer`: q, k and v, merged or not, and output. `feed`: experts,
        or gate and up, merged or not, and down."""
        q, *kv, output = (linear.in_c for linear in mixer)
        parts = (CMlp(), ctypes.addressof(feed.in_c)) if isinstance(feed, CpuExperts) else (CMlp.of(feed), None)
        norms = address(input_norm_E), address(qk_norm_ND), feed_norm_E.data_ptr()
        qkv, by = (q, *(kv or [CLinear(), CLinear()])), CScoring.of(scoring)
        return cls(norms[0], *qkv, norms[1], by, output, norms[2], *parts)


class _Decodes(ctypes.Structure):
    """`decodes` of cpu_layers.h."""

    _fields_ = (
        *((name, _POINTER) for name in ("cos_TF", "sin_TF", "k_rows", "v_rows")),
        ("of", CRequests),
        *((name, _LONG) for name in ("num_heads", "num_kv_heads", "head_dim", "page_size")),
        ("eps", ctypes.c_float),
    )


class _TokenPlaces(ctypes.Structure):
    """`token_places` of cpu_layers.h."""

    _fields_ = tuple((name, _POINTER) for name in ("positions", "slots", "inv_freq_F", "room"))


@dataclass(frozen=True)
class CpuLayers:
    """The layers of one model. Whoever holds it holds the tensors of its weights, too."""

    kernels: CpuKernels
    layers: "ctypes.Array[CLayer]"
    numbers_of_a_row: int  # of the widest values that a layer has at a time, beside those of experts
    dtype: torch.dtype  # of its activations
    inv_freq_F: Tensor

    @classmethod
    def of(cls, kernels: CpuKernels, layers: Sequence[CLayer], dtype: torch.dtype, inv_freq_F: Tensor) -> "CpuLayers":
        """`layers` in their order, with activations of `dtype`. InternalError if C has another form of the structs."""
        check_struct(kernels.library, "layer", CLayer)
        check_struct(kernels.library, "decodes", _Decodes)
        check_struct(kernels.library, "token_places", _TokenPlaces)
        of_a_row = max(numbers_of_a_row(kernels, layer) for layer in layers)
        return cls(kernels, (CLayer * len(layers))(*layers), of_a_row, dtype, inv_freq_F)

    def run(
        self,
        x_TE: Tensor,
        inp: ModelInput,
        kv: PagedKv,
        plan: CpuPlan,
        noted_layers: Collection[int] = (),
    ) -> tuple[Tensor, list[Tensor]]:
        """`x_TE` are the embedded tokens of `inp`. The output (T, E) of the last layer, and the inputs of
        `noted_layers`, in the order of the layers. Writes K and V of every layer."""
        assert x_TE.dtype == self.dtype
        kernels, x_TE = self.kernels, x_TE.contiguous()
        decodes, (places, _room) = decodes_in_c(kernels, kv, plan), places_in_c(kernels, inp, self.inv_freq_F)
        pages = (ctypes.c_void_p * len(self.layers))(*(kv.layer(i).data_ptr() for i in range(len(self.layers))))
        num_rows = x_TE.shape[0]
        scratch = torch.empty(self._scratch_bytes(num_rows) + ALIGNED, dtype=torch.uint8)
        noted = sorted(set(noted_layers))
        inputs = [torch.empty_like(x_TE) for _ in noted]
        kernels.threads.before_long_call()
        kernels.library.decode_layers(
            self.layers, pages, _LONG(len(self.layers)), ctypes.byref(places), ctypes.byref(decodes),
            _POINTER(x_TE.data_ptr()), _POINTER(aligned(scratch)), _LONG(num_rows),
            (_LONG * len(noted))(*noted), _LONG(len(noted)), (_POINTER * len(noted))(*(i.data_ptr() for i in inputs)),
            kernels.threads.for_rows(num_rows),
        )  # fmt: skip
        return x_TE, inputs

    def _scratch_bytes(self, rows: int) -> int:
        """Bytes of the widest values of a layer, and behind them those of experts, which begin at a multiple of
        ALIGNED."""
        dense = rows * self.numbers_of_a_row * self.dtype.itemsize
        return dense + bytes_of_experts(self.kernels, self.layers, rows)


def is_decodes(plan: object) -> TypeGuard[CpuPlan]:
    """Whether a forward with this plan can be one call: it has decodes, and no chunk of a prompt."""
    return isinstance(plan, CpuPlan) and plan.paged is not None and not plan.extends and not plan.chunks


def places_in_c(kernels: CpuKernels, inp: ModelInput, inv_freq_F: Tensor) -> tuple[_TokenPlaces, Tensor]:
    """Where the tokens of `inp` lie, for C, and the memory that C needs for it. Valid as long as the tensors live."""
    positions_T, slots_T = inp.positions_T, inp.slots_T
    assert all(each.is_contiguous() and each.dtype == torch.int64 for each in (positions_T, slots_T))
    assert inv_freq_F.is_contiguous() and inv_freq_F.dtype == torch.float32
    assert inv_freq_F.shape == (kernels.head_dim // 2,)
    room = torch.empty(positions_T.shape[0] * (4 + kernels.head_dim))
    addresses = (each.data_ptr() for each in (positions_T, slots_T, inv_freq_F, room))
    return _TokenPlaces(*addresses), room


def decodes_in_c(kernels: CpuKernels, kv: PagedKv, plan: CpuPlan) -> _Decodes:
    """The decodes of a plan for C, which finds out for itself where they lie. Valid as long as the tensors live."""
    assert plan.paged is not None
    return _Decodes(
        None, None, None, None, plan.paged.in_c, kernels.num_heads, kernels.num_kv_heads, kernels.head_dim,
        kv.layout.page_size, kernels.eps,
    )  # fmt: skip


def bytes_of_experts(kernels: CpuKernels, layers: "ctypes.Array[CLayer]", rows: int) -> int:
    """How many bytes these layers work in for the experts of so many rows, at most. 0: they have none."""
    count = kernels.library.most_mix_bytes
    count.restype = _LONG
    return int(count(layers, _LONG(len(layers)), _LONG(rows)))


def numbers_of_a_row(kernels: CpuKernels, layer: CLayer) -> int:
    """How many numbers of one row a layer holds at a time, at most."""
    q_size, kv_size = kernels.num_heads * kernels.head_dim, kernels.num_kv_heads * kernels.head_dim
    after_norm = max(q_size + 2 * kv_size, 3 * layer.feed.down.inputs)
    return int(q_size + max(layer.output.outputs + after_norm, q_size))
