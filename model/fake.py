"""A model whose next token is a hash of the KV that it reads: a wrong, missing or reordered page changes the text.

Each token writes numbers derived from (token, position, layer) into every layer's K and V. The next token is a hash of
these numbers, read through the page table, over the whole context in every layer.
Shapes: T tokens, L wanted rows, N tokens of all the contexts read, W = 2 * heads * head_dim numbers of a token.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.sampler import mix, shift_right, signed
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from runtime.model_config import ModelConfig, RopeConfig

_WRAP: Final = (1 << 64) - 1
_MULTIPLIERS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
_VALUE_BITS: Final = 22  # float32 holds such integers exactly


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
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    dtype: str = "float32"
    mapped_weight_bytes: int = 0  # it has no weights
    private_weight_bytes: int = 0

    @property
    def config(self) -> ModelConfig:
        """A config with this fake's sizes."""
        return ModelConfig(
            architecture="fake",
            vocab_size=self.vocab_size,
            hidden_size=self.num_kv_heads * self.head_dim,
            intermediate_size=1,
            num_layers=self.num_layers,
            num_heads=self.num_kv_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.context_length,
            context_length=self.context_length,
            rms_norm_eps=1e-6,
            rope=RopeConfig(10_000.0),
            checkpoint_dtype="float32",
            eos_token_ids=self.eos_token_ids,
        )

    def kv_layout(self, page_size: int) -> KvLayout:
        """The shape of this model's KV at a page size (tokens). Always float32."""
        return KvLayout.uniform(self.num_layers, self.num_kv_heads, self.head_dim, page_size, "float32")

    def fingerprint(self) -> Fingerprint:
        """Equal for fakes of equal sizes."""
        return Fingerprint(f"fake-{self.vocab_size}-{self.num_layers}-{self.num_kv_heads}-{self.head_dim}")

    @torch.no_grad()
    def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """Logits (L, V) float32: 100 at the hashed token, 0 elsewhere."""
        if self.before_forward is not None:
            self.before_forward(inp)

        contexts = _contexts(inp, kv.layout.page_size)
        hash_L = torch.zeros(inp.logit_indices_L.shape[0], dtype=torch.int64, device=inp.positions_T.device)
        for layer in range(self.num_layers):
            kv_layer = kv.layer(layer)
            self._write(kv_layer, inp, layer)
            if on_layer is not None:
                on_layer(layer)
            values_NW = kv_layer[contexts.pages_N, :, contexts.offsets_N].flatten(1)
            hash_L.index_add_(0, contexts.rows_N, _token_hash(values_NW, contexts.positions_N, layer))

        tokens_L = shift_right(mix(hash_L), 1) % self.vocab_size
        logits_LV = torch.zeros(hash_L.shape[0], self.vocab_size, device=hash_L.device)
        return logits_LV.scatter_(1, tokens_L[:, None], 100.0)

    def _write(self, kv_layer: Tensor, inp: ModelInput, layer: int) -> None:
        page_size = kv_layer.shape[2]
        prints_T = mix(mix(mix(inp.input_ids_T) ^ inp.positions_T) ^ layer)
        multipliers_W = _multipliers(2 * self.num_kv_heads * self.head_dim, prints_T.device)
        values_TW = shift_right(prints_T[:, None] * multipliers_W, 64 - _VALUE_BITS)
        shape = (-1, 2, self.num_kv_heads, self.head_dim)
        kv_layer[inp.slots_T // page_size, :, inp.slots_T % page_size] = values_TW.view(shape).to(kv_layer.dtype)


@dataclass(frozen=True)
class _Contexts:
    """The contexts of all wanted rows, one after the other: the place of token n, and the row (of L) that reads it."""

    rows_N: Tensor
    positions_N: Tensor
    pages_N: Tensor
    offsets_N: Tensor


def _contexts(inp: ModelInput, page_size: int) -> _Contexts:
    device = inp.positions_T.device
    num_extends = len(inp.extend_lens)
    lens_B = torch.tensor(inp.extend_lens + (1,) * inp.num_decodes, dtype=torch.int64, device=device)
    requests_T = torch.repeat_interleave(torch.arange(num_extends + inp.num_decodes, device=device), lens_B)
    context_L = inp.positions_T[inp.logit_indices_L] + 1
    rows_N = torch.repeat_interleave(torch.arange(context_L.shape[0], device=device), context_L)
    starts_L = context_L.cumsum(0) - context_L
    positions_N = torch.arange(rows_N.shape[0], device=device) - starts_L[rows_N]
    requests_N = requests_T[inp.logit_indices_L][rows_N]
    pages_N = inp.page_table_BP[requests_N, positions_N // page_size]
    return _Contexts(rows_N, positions_N, pages_N, positions_N % page_size)


def _token_hash(values_NW: Tensor, positions_N: Tensor, layer: int) -> Tensor:
    """One hash per token read, from the values read and the position that was wanted."""
    # NaN and fractions must not look like a written value.
    exact_NW = torch.nan_to_num(values_NW.double() * 2**10).to(torch.int64)
    whole_NW = torch.where(exact_NW & 1023 == 0, exact_NW >> 10, -1)
    total_N = (whole_NW * _multipliers(values_NW.shape[1], values_NW.device)).sum(-1)
    return mix(mix(total_N ^ positions_N) ^ layer)


def _multipliers(count: int, device: torch.device) -> Tensor:
    values = [signed((_MULTIPLIERS[index % 4] + 2 * index) & _WRAP) for index in range(count)]
    return torch.tensor(values, dtype=torch.int64, device=device)
