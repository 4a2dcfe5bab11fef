"""A forward of a draft of one layer, or a chain of its proposals, in one call of C (cpu_draft.c).

The results are those of LoadedDraft layer by layer, bit for bit.
Shapes: T tokens, B rows, S steps of a chain, E hidden, V the target's vocabulary, N the draft's.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from model.attention_cpu import CpuPlan
from model.cpu_kernels import CpuKernels
from model.cpu_layers import CLayer, address, decodes_in_c, numbers_of_a_row
from model.cpu_products import Bfloat16Linear, CLinear
from model.cpu_structs import check_struct
from model.paged_kv import PagedKv
from model.passes import Rotation, Rows

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64


class CDraft(ctypes.Structure):
    """`draft` of cpu_layers.h. It is valid as long as the tensors live that it was made of."""

    _fields_ = (
        ("embedding", _POINTER),
        ("token_norm", _POINTER),
        ("hidden_norm", _POINTER),
        ("hidden_first", _LONG),
        ("project", CLinear),
        ("layer", CLayer),
        ("output_norm", _POINTER),
        ("head_norm", _POINTER),
        ("head", CLinear),
        ("target_ids", _POINTER),
    )


@dataclass(frozen=True)
class DraftParts:
    """What the layer reads and what proposes from it, around the layer. `project` None: attention reads the token and
    the hidden state side by side, and the hidden state is the residual."""

    embedding_VE: Tensor
    project: Bfloat16Linear | None
    head: Bfloat16Linear
    token_norm_E: Tensor | None = None
    hidden_norm_E: Tensor | None = None
    hidden_first: bool = False  # the hidden state lies before the token
    output_norm_E: Tensor | None = None
    head_norm_E: Tensor | None = None
    target_ids_N: Tensor | None = None

    def in_c(self, layer: CLayer) -> CDraft:
        """The same for C, with this layer."""
        no_product = CLinear(None, None, 0, 0)
        return CDraft(
            self.embedding_VE.data_ptr(), address(self.token_norm_E), address(self.hidden_norm_E), self.hidden_first,
            no_product if self.project is None else self.project.in_c, layer, address(self.output_norm_E),
            address(self.head_norm_E), self.head.in_c, address(self.target_ids_N),
        )  # fmt: skip


@dataclass(frozen=True)
class CpuDraft:
    """One layer of a draft. Whoever holds it holds the tensors of the layer, too."""

    kernels: CpuKernels
    parts: DraftParts
    in_c: CDraft
    dtype: torch.dtype  # of its activations

    @classmethod
    def of(cls, kernels: CpuKernels, parts: DraftParts, layer: CLayer, dtype: torch.dtype) -> "CpuDraft":
        """InternalError if C has another form of the structs."""
        for name, struct in (("layer", CLayer), ("draft", CDraft)):
            check_struct(kernels.library, name, struct)
        assert parts.embedding_VE.is_contiguous() and parts.embedding_VE.dtype == dtype
        assert parts.target_ids_N is not None or parts.head.outputs <= parts.embedding_VE.shape[0]
        return cls(kernels, parts, parts.in_c(layer), dtype)

    def run(
        self,
        embedded_TE: Tensor,
        hidden_TE: Tensor,
        rotation: Rotation,
        rows: Rows,
        kv: PagedKv,
        layer: int,
        plan: CpuPlan,
    ) -> Tensor:
        """What the layer, which is `layer` in KV, gives for these tokens and hidden states, (T, E)."""
        assert embedded_TE.dtype == hidden_TE.dtype == self.dtype
        kernels, hidden_TE = self.kernels, hidden_TE.contiguous()
        num_rows, out_TE = embedded_TE.shape[0], torch.empty_like(embedded_TE)
        scratch = torch.empty(num_rows * self._numbers_of_a_row, dtype=self.dtype)
        kernels.library.draft_rows(
            ctypes.byref(self.in_c), _POINTER(kv.layer(layer).data_ptr()),
            ctypes.byref(decodes_in_c(kernels, rotation, rows, kv, plan)), _POINTER(embedded_TE.data_ptr()),
            _POINTER(hidden_TE.data_ptr()), _POINTER(out_TE.data_ptr()), _POINTER(scratch.data_ptr()),
            _LONG(num_rows), kernels.threads.for_rows(num_rows),
        )  # fmt: skip
        return out_TE

    def chain(
        self,
        embedded_BE: Tensor,
        hidden_BE: Tensor,
        rotation: Rotation,
        rows: Rows,
        kv: PagedKv,
        layer: int,
        plan: CpuPlan,
    ) -> Tensor:
        """(S, B): the likeliest token behind each of these tokens, the likeliest behind that, and so on. `plan` and
        `rows` are of S * B decodes, step after step; the plan's page table has B rows."""
        assert embedded_BE.dtype == hidden_BE.dtype == self.dtype and plan.paged is not None
        kernels, hidden_BE = self.kernels, hidden_BE.contiguous()
        num_rows = embedded_BE.shape[0]
        tokens_SB = torch.empty((plan.paged.seq_lens_D.shape[0] // num_rows, num_rows), dtype=torch.int64)
        own = 3 * self.in_c.layer.output.outputs + self.in_c.head.outputs
        scratch = torch.empty(num_rows * (own + self._numbers_of_a_row), dtype=self.dtype)
        kernels.library.draft_chain(
            ctypes.byref(self.in_c), _POINTER(kv.layer(layer).data_ptr()),
            ctypes.byref(decodes_in_c(kernels, rotation, rows, kv, plan)), _POINTER(embedded_BE.data_ptr()),
            _POINTER(hidden_BE.data_ptr()), _POINTER(tokens_SB.data_ptr()), _POINTER(scratch.data_ptr()),
            _LONG(num_rows), _LONG(tokens_SB.shape[0]), kernels.threads.for_rows(num_rows),
        )  # fmt: skip
        return tokens_SB

    @property
    def _numbers_of_a_row(self) -> int:
        """Of the token and the hidden state side by side, and of the widest values that the layer has at a time."""
        layer = self.in_c.layer
        return 2 * int(layer.output.outputs) + numbers_of_a_row(self.kernels, layer)
