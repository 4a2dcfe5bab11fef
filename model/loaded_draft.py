"""What drafts with weights have in common: they embed tokens, run one decoder layer at a time, and propose by a head.

Shapes: T tokens, L wanted rows, E hidden, V the target's vocabulary, F numbers of a target's feature.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from model.attention import AttentionBackend
from model.attention_cpu import CpuPlan
from model.cpu_draft import CpuDraft, DraftParts
from model.cpu_kernels import CpuKernels
from model.cpu_layers import is_decodes
from model.draft import chain_by_steps, likeliest_by_logits
from model.inputs import ChainInput, ModelInput
from model.layer import DecoderLayer, LayerPass
from model.linear import AnyLinear
from model.paged_kv import PagedKv
from model.passes import Passes, Rope
from protocol.kv_layout import LayerGroup
from runtime.draft_config import DraftConfig


@dataclass(frozen=True)
class LoadedDraft:
    """See Draft in model/draft.py. Subclasses tell what a layer reads (`_run`)."""

    config: DraftConfig
    first_layer: int  # of KV: the number of the target's layers
    passes: Passes
    attention: AttentionBackend
    rope: Rope
    embedding_VE: Tensor
    layers: tuple[DecoderLayer, ...]
    head: AnyLinear
    at_once: tuple[CpuDraft, ...] = ()  # the layers, for forwards that can run each in one call; or none

    @property
    def num_layers(self) -> int:
        """See Draft."""
        return len(self.layers)

    @property
    def group(self) -> LayerGroup:
        """See Draft. Each layer drafts one token further."""
        layer = self.config.layer
        return LayerGroup(self.num_layers, layer.num_kv_heads, layer.head_dim, lookahead=self.num_layers)

    @property
    def hidden_size(self) -> int:
        """E."""
        return self.config.layer.hidden_size

    @property
    def hidden_dtype(self) -> torch.dtype:
        """See Draft."""
        return self.embedding_VE.dtype

    @property
    def vocab_size(self) -> int:
        """See Draft."""
        return self.config.draft_vocab_size

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """See Draft."""
        return self.config.feature_layers

    def fuse(self, features_TF: Tensor) -> Tensor:
        """Hidden states (T, E) from features of the target: the same."""
        return features_TF

    def run_layer(
        self,
        index: int,
        inp: ModelInput,
        hidden_TE: Tensor,
        kv: PagedKv,
        on_layer: Callable[[int], None] | None = None,
        *,
        attends: bool = True,
    ) -> Tensor:
        """Hidden states (T, E) of all slots from layer `index` alone, whose K and V it writes; see Draft.run_layer.

        One call of C if all tokens are decodes, else operation by operation."""
        if attends and (plan := self._plan_at_once(inp, kv, on_layer)) is not None:
            return self.at_once[index].run(inp, hidden_TE, kv, plan)
        layers, at = self.layers[index : index + 1], self.first_layer + index
        through = LayerPass.begin(
            self.passes, self.attention, inp, kv, (self.rope,), on_layer, layers, at, attends=attends
        )
        return self._run(index, through, F.embedding(inp.input_ids_T, self.embedding_VE), hidden_TE)

    def likeliest(
        self, inp: ModelInput, hidden_TE: Tensor, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """See Draft.likeliest."""
        if (plan := self._plan_at_once(inp, kv, on_layer)) is not None:
            return self.at_once[0].likeliest(inp, hidden_TE, kv, plan)
        return likeliest_by_logits(self, inp, hidden_TE, kv, on_layer)

    def chain(self, steps: ChainInput, tokens_B: Tensor, hidden_BE: Tensor, kv: PagedKv) -> Tensor:
        """(1 + S, B): the likeliest proposals; see Draft.chain."""
        if self.at_once and (plan := self._plan_at_once(inp := steps.in_one_call, kv)) is not None:
            return self.at_once[0].chain(inp, tokens_B, hidden_BE, kv, plan)
        return chain_by_steps(self, steps, tokens_B, hidden_BE, kv)

    def _plan_at_once(
        self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> CpuPlan | None:
        """The plan of a forward that can run in one call: all its tokens are decodes."""
        if not self.at_once or on_layer is not None or inp.extend_lens:
            return None
        plan = self.attention.plan(inp, kv.layout.layer(self.first_layer))
        return plan if is_decodes(plan) else None

    def logits(self, hidden_LE: Tensor) -> Tensor:
        """Logits (L, V) float32 of the token that hidden states of any layer propose."""
        return self.head(hidden_LE).float()

    def in_one_call(self) -> Self:
        """The same draft, with its layers for cpu_draft.c if they have what it computes with."""
        layers = [self._at_once(index) for index in range(self.num_layers)]
        return replace(self, at_once=tuple([layer for layer in layers if layer is not None]) if all(layers) else ())

    def _at_once(self, index: int) -> CpuDraft | None:
        parts, layer = self._parts(index), self.layers[index].in_c
        if not isinstance(self.passes, CpuKernels) or parts is None or layer is None or self.rope.factor != 1.0:
            return None
        at = self.first_layer + index
        return CpuDraft.of(self.passes, parts, layer, self.embedding_VE.dtype, self.rope.inv_freq_F, at)

    def _parts(self, index: int) -> DraftParts | None:
        """What is around layer `index`, if cpu_draft.c computes with such weights."""
        raise NotImplementedError

    def _run(self, index: int, through: LayerPass, embedded_TE: Tensor, hidden_TE: Tensor) -> Tensor:
        raise NotImplementedError
