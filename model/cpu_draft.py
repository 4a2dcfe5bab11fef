"""A forward of a draft of one layer, its proposals, or a chain of them, in one call of C (cpu_draft.c).

The results are those of LoadedDraft layer by layer, bit for bit.
Shapes: T tokens, L wanted rows, B rows, S steps of a chain, E hidden, F frequencies, V the target's vocabulary, N the
draft's.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model.attention_cpu import CpuPlan
from model.cpu_kernels import CpuKernels
from model.cpu_layers import CLayer, bytes_of_experts, decodes_in_c, numbers_of_a_row, places_in_c
from model.cpu_products import CLinear, CpuLinear
from model.cpu_structs import address, check_struct
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from protocol.errors import InternalError

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64


class CDraft(ctypes.Structure):
    """`draft` of cpu_layers.h. It is valid as long as the tensors live that it was made of."""

    _fields_ = (
        ("embedding", _POINTER),
        ("num_tokens", _LONG),
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
    project: CpuLinear | None
    head: CpuLinear
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
            self.embedding_VE.data_ptr(), self.embedding_VE.shape[0], address(self.token_norm_E),
            address(self.hidden_norm_E), self.hidden_first, no_product if self.project is None else self.project.in_c,
            layer, address(self.output_norm_E), address(self.head_norm_E), self.head.in_c, address(self.target_ids_N),
        )  # fmt: skip


@dataclass(frozen=True)
class CpuDraft:
    """One layer of a draft, which is `layer` in KV. Whoever holds it holds the tensors of the layer, too."""

    kernels: CpuKernels
    parts: DraftParts
    in_c: CDraft
    dtype: torch.dtype  # of its activations
    inv_freq_F: Tensor
    layer: int

    @classmethod
    def of(
        cls, kernels: CpuKernels, parts: DraftParts, in_c: CLayer, dtype: torch.dtype, inv_freq_F: Tensor, layer: int
    ) -> "CpuDraft":
        """InternalError if C has another form of the structs."""
        for name, struct in (("layer", CLayer), ("draft", CDraft)):
            check_struct(kernels.library, name, struct)
        assert parts.embedding_VE.is_contiguous() and parts.embedding_VE.dtype == dtype
        assert parts.target_ids_N is not None or parts.head.outputs <= parts.embedding_VE.shape[0]
        return cls(kernels, parts, parts.in_c(in_c), dtype, inv_freq_F, layer)

    def run(self, inp: ModelInput, hidden_TE: Tensor, kv: PagedKv, plan: CpuPlan) -> Tensor:
        """What the layer gives for these tokens and hidden states, (T, E). InternalError if a token is unknown."""
        num_rows, out_TE = inp.input_ids_T.shape[0], torch.empty_like(hidden_TE)
        self._call(
            "draft_rows", inp, hidden_TE, kv, plan, (out_TE.data_ptr(),), (_LONG(num_rows),), num_rows * self._of_a_row
        )
        return out_TE

    def likeliest(self, inp: ModelInput, hidden_TE: Tensor, kv: PagedKv, plan: CpuPlan) -> tuple[Tensor, Tensor]:
        """What `run` gives at the wanted rows (L, E), and before that the likeliest tokens (L,) behind them. Of the
        other rows only K and V are computed."""
        assert inp.tree_mask is None
        num_rows, wanted_L, num_wanted = inp.input_ids_T.shape[0], inp.logit_indices_L, inp.logit_indices_L.shape[0]
        assert wanted_L.is_contiguous()
        tokens_L = torch.empty(num_wanted, dtype=torch.int64)
        kept_LE = torch.empty((num_wanted, hidden_TE.shape[1]), dtype=self.dtype)
        room = torch.empty(num_wanted * (2 + inp.page_table_BP.shape[1]), dtype=torch.int64)
        outputs = (wanted_L.data_ptr(), num_wanted, tokens_L.data_ptr(), kept_LE.data_ptr(), room.data_ptr())
        scratch = num_rows * (kept_LE.shape[1] + self._of_a_row)
        scratch += num_wanted * (self._of_a_row + self.in_c.head.outputs)
        self._call("draft_likeliest", inp, hidden_TE, kv, plan, outputs, (_LONG(num_rows),), scratch)
        return tokens_L, kept_LE

    def chain(self, inp: ModelInput, tokens_B: Tensor, hidden_BE: Tensor, kv: PagedKv, plan: CpuPlan) -> Tensor:
        """(1 + S, B): see Draft.chain. `inp` has S * B decodes, step after step; its page table has B rows."""
        num_rows, size = hidden_BE.shape
        num_steps = inp.num_decodes // num_rows
        tokens_SB = torch.empty((1 + num_steps, num_rows), dtype=torch.int64)
        scratch = num_rows * (3 * size + self.in_c.head.outputs + self._of_a_row)
        sizes = (_LONG(num_rows), _LONG(num_steps))
        inp = replace(inp, input_ids_T=tokens_B.contiguous())
        self._call("draft_chain", inp, hidden_BE, kv, plan, (tokens_SB.data_ptr(),), sizes, scratch)
        return tokens_SB

    def _call(
        self,
        name: str,
        inp: ModelInput,
        hidden: Tensor,
        kv: PagedKv,
        plan: CpuPlan,
        outputs: Sequence[int],
        sizes: Sequence[ctypes.c_int64],
        scratch: int,
    ) -> None:
        """Calls a function of cpu_draft.c, with room for `scratch` numbers, and behind them for the experts of as many
        rows as `hidden` has, or are wanted."""
        kernels, ids, hidden = self.kernels, inp.input_ids_T, hidden.contiguous()
        assert hidden.dtype == self.dtype and hidden.shape[0] == ids.shape[0]
        assert ids.is_contiguous()
        places, _room = places_in_c(kernels, inp, self.inv_freq_F)
        most_rows = max(hidden.shape[0], inp.logit_indices_L.shape[0])
        layers = (CLayer * 1)(self.in_c.layer)
        room = scratch * self.dtype.itemsize + bytes_of_experts(kernels, layers, most_rows)
        numbers = torch.empty(room, dtype=torch.uint8)
        kernels.threads.before_long_call()
        knows = kernels.library[name](
            ctypes.byref(self.in_c), _POINTER(kv.layer(self.layer).data_ptr()), ctypes.byref(places),
            ctypes.byref(decodes_in_c(kernels, kv, plan)), _POINTER(ids.data_ptr()),
            _POINTER(hidden.data_ptr()), *map(_POINTER, outputs), _POINTER(numbers.data_ptr()), *sizes,
            kernels.threads.for_rows(ids.shape[0]),
        )  # fmt: skip
        if not knows:
            raise InternalError(f"a draft reads a token that is none of its {self.in_c.num_tokens}")

    @property
    def _of_a_row(self) -> int:
        """Numbers of scratch: a token, it and a hidden state side by side, and the widest values within the layer."""
        layer = self.in_c.layer
        return 3 * int(layer.output.outputs) + numbers_of_a_row(self.kernels, layer)
