"""A model whose next token is a hash of the KV that it reads: a wrong, missing or reordered page changes the text.

Each token writes numbers derived from (token, position, layer) into every layer's K and V. The next token is a hash of
these numbers, read through the page table, over the whole context in every layer. In a group, each layer also sends the
tokens to the other ranks and back: what does not come back changes the text, too. With `has_experts` they pass through
experts on the way, also without a group.
Shapes: T tokens, L wanted rows, N tokens of all the contexts read.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from model import fake_experts
from model.collectives import Collectives
from model.fake_draft import FakeDraft
from model.fake_hash import Contexts, contexts, hashed, logits_for, next_token, numbers, prints, write_numbers
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from protocol.fingerprint import Fingerprint, WeightsPrint
from protocol.kv_layout import KvLayout, LayerGroup
from runtime.model_config import ModelConfig
from runtime.model_parts import AttentionConfig, LayerConfig, MlpConfig, RopeConfig


@dataclass(frozen=True)
class FakeRunner:
    """Replaces ModelRunner. `before_forward` is called at the start of each forward; it may wait or raise."""

    vocab_size: int = 997
    num_layers: int = 2
    num_kv_heads: int = 1
    head_dim: int = 4
    context_length: int = 4096
    eos_token_ids: tuple[int, ...] = ()
    before_forward: Callable[[ModelInput], None] | None = None
    draft_seed: int | None = None  # None: no draft; drafts of different seeds are different drafts
    num_draft_layers: int = 1  # each drafts another token
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    collectives: Collectives | None = None  # of its group, which its layers enter as a real model's do
    has_experts: bool = False  # its layers send tokens through experts

    dtype: str = "float32"
    mapped_weight_bytes: int = 0  # it has no weights
    private_weight_bytes: int = 0
    max_graphed: int = 0

    @property
    def config(self) -> ModelConfig:
        """A config with this fake's sizes."""
        attention = AttentionConfig(self.num_kv_heads, self.num_kv_heads, self.head_dim)
        return ModelConfig(
            architecture="fake",
            vocab_size=self.vocab_size,
            hidden_size=self.num_kv_heads * self.head_dim,
            layers=(LayerConfig(attention, MlpConfig(1)),) * self.num_layers,
            max_position_embeddings=self.context_length,
            context_length=self.context_length,
            rms_norm_eps=1e-6,
            rope=RopeConfig(10_000.0),
            checkpoint_dtype="float32",
            eos_token_ids=self.eos_token_ids,
        )

    @property
    def draft(self) -> FakeDraft | None:
        """The fake draft, if there is a draft_seed."""
        if self.draft_seed is None:
            return None
        group = LayerGroup(self.num_draft_layers, self.num_kv_heads, self.head_dim, lookahead=self.num_draft_layers)
        return FakeDraft(self.draft_seed, self.vocab_size, self.num_layers, group)

    def longest_at_once(self, num_decodes: int) -> int | None:
        """See AttentionBackend. It reads contexts of any length."""
        return None

    def kv_layout(self, page_size: int) -> KvLayout:
        """The shape of this model's KV at a page size (tokens). Always float32."""
        target = LayerGroup(self.num_layers, self.num_kv_heads, self.head_dim)
        return KvLayout((target, *([self.draft.group] if self.draft else [])), page_size, "float32")

    def fingerprint(self) -> Fingerprint:
        """Equal for fakes of equal sizes with equal drafts."""
        config = f"fake-{self.vocab_size}-{self.num_layers}-{self.num_kv_heads}-{self.head_dim}"
        facts = {"algorithm": "fake", "seed": f"{self.draft_seed}"}
        return Fingerprint(config, draft=WeightsPrint(f"fake-{self.draft_seed}", facts=facts) if self.draft else None)

    def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """Logits (L, V) float32: 100 at the hashed token, 0 elsewhere."""
        hash_L, _ = self.hidden(inp, kv, on_layer)
        logits_LV: Tensor = self.logits(hash_L)
        return logits_LV

    def forward_with_features(
        self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits as `forward` gives them, and the features that the fake draft needs."""
        hash_L, features_TF = self.hidden(inp, kv, on_layer)
        assert features_TF is not None, "only a draft reads features"
        return self.logits(hash_L), features_TF

    def hidden(
        self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The hashes (L,) of the contexts up to the wanted rows, and features if there is a draft."""
        hash_N, running_N, where = self._read(inp, kv, on_layer)
        features_TF = None if self.draft is None else self.draft.features(hash_N, running_N, where)
        hash_L: Tensor = running_N[where.token_T[inp.logit_indices_L]]
        return hash_L, features_TF

    def logits(self, hidden_LE: Tensor) -> Tensor:
        """Logits (L, V) float32 behind contexts with these hashes."""
        return logits_for(next_token(hidden_LE, self.vocab_size), self.vocab_size)

    def _read(
        self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None
    ) -> tuple[Tensor, Tensor, Contexts]:
        """Writes the tokens' KV. Returns the hash of every token in a context, and of the context up to it."""
        if self.before_forward is not None:
            self.before_forward(inp)

        where = contexts(inp, kv.layout.page_size)
        hash_N = torch.zeros_like(where.positions_N)
        for layer in range(self.num_layers):
            kv_layer = kv.layer(layer)
            width = 2 * self.num_kv_heads * self.head_dim
            write_numbers(kv_layer, inp.slots_T, numbers(prints(inp.input_ids_T, inp.positions_T, layer), width))
            if on_layer is not None:
                on_layer(layer)
            hash_N += hashed(where.read(kv_layer), where.positions_N, layer)
            if self.has_experts:
                hash_N[where.token_T] += fake_experts.lost(inp.input_ids_T, self.collectives, inp.step)
            elif self.collectives is not None:
                hash_N[where.token_T] += _lost(self.collectives, inp)
        return hash_N, where.running(hash_N), where


def _lost(collectives: Collectives, inp: ModelInput) -> Tensor:
    """By token, how far it is from what comes back from all ranks of the group: 0 if nothing went wrong."""
    assert inp.step is not None, "a rank of a group computes no forward without the step of all ranks"
    own_T1 = inp.input_ids_T[:, None].float()
    padded_P1 = F.pad(own_T1, (0, 0, 0, inp.step.padded - own_T1.shape[0]))
    came_RP1 = collectives.exchange(collectives.gather(padded_P1, inp.step), inp.step)
    lost_T1 = came_RP1[:, : own_T1.shape[0]].sum(0) - collectives.size * own_T1
    return lost_T1[:, 0].long()
