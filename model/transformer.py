"""One decoder for every supported architecture. Architectures differ in their optional weights, not in code.

It has the order of operations and the names of the checkpoint's tensors.
Shapes: T tokens, H query heads, K kv heads, D head_dim, E hidden, L wanted rows, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, device, dtype

from model.attention import AttentionBackend
from model.checkpoint import Checkpoint
from model.inputs import ModelInput
from model.layers import AnyLinear, Linear, ParallelLinears, pack, parallel_linears
from model.paged_kv import PagedKv
from model.passes import Passes
from model.rope import inverse_frequencies
from runtime.model_config import ModelConfig


@dataclass(frozen=True)
class DecoderLayer:
    """Weights of one layer. `qk_norm_ND` is None in architectures without a q/k norm."""

    input_norm_E: Tensor
    qkv: ParallelLinears
    qk_norm_ND: Tensor | None  # N = H + K: the q norm for every query head, then the k norm for every kv head
    output: AnyLinear
    mlp_norm_E: Tensor
    gate_up: ParallelLinears
    down: AnyLinear


@dataclass(frozen=True)
class Decoder:
    """Weights of the whole model on one device."""

    config: ModelConfig
    embedding_VE: Tensor
    layers: tuple[DecoderLayer, ...]
    final_norm_E: Tensor
    head: AnyLinear
    inv_freq_F: Tensor
    passes: Passes

    def forward(
        self, inp: ModelInput, kv: PagedKv, attention: AttentionBackend, on_layer: Callable[[int], None] | None
    ) -> Tensor:
        """Logits (L, V) float32. Writes K and V of all T tokens at their slots, layer by layer."""
        passes = self.passes
        rotation = passes.rotation(inp.positions_T, self.inv_freq_F)
        plan = attention.plan(inp, kv.layout.layer(0))  # the model's own layers come first
        rows = kv.token_rows(inp.slots_T)
        x_TE = F.embedding(inp.input_ids_T, self.embedding_VE)

        for index, layer in enumerate(self.layers):
            qkv = layer.qkv(passes.rms_norm(x_TE, layer.input_norm_E))
            q_THD = passes.place(qkv, layer.qk_norm_ND, rotation, kv, index, rows)
            if on_layer is not None:
                on_layer(index)

            attended_THD = attention.attend(q_THD, kv.layer(index), plan)
            x_TE = layer.output.added_to(x_TE, attended_THD.flatten(1))
            gate_up = layer.gate_up(passes.rms_norm(x_TE, layer.mlp_norm_E))
            x_TE = layer.down.added_to(x_TE, passes.gated(gate_up))

        wanted_LE = passes.rms_norm(x_TE.index_select(0, inp.logit_indices_L), self.final_norm_E)
        return self.head(wanted_LE).float()


def load_decoder(
    checkpoint: Checkpoint,
    config: ModelConfig,
    passes: Passes,
    *,
    to_dtype: dtype,
    to_device: device,
    packed: bool = False,
) -> Decoder:
    """Loads and checks the weights that `config` implies. CheckpointError names the first that does not fit.

    `packed` lays them out for oneDNN if it can. That is faster, but takes this worker's own memory.
    """
    weights = _Weights(checkpoint, config, to_dtype, to_device, packed)
    sizes = (config.vocab_size, config.hidden_size)
    embedding, head = "model.embed_tokens", "lm_head"
    if config.tie_word_embeddings:  # the tensor may have either name; if both exist, each is used, as in transformers
        embedding = embedding if f"{embedding}.weight" in checkpoint else head
        head = head if f"{head}.weight" in checkpoint else embedding
    embedding_VE = weights.tensor(f"{embedding}.weight", *sizes)
    head_linear = Linear(embedding_VE) if head == embedding else weights.linear(head, *sizes, bias=False)

    return Decoder(
        config=config,
        embedding_VE=embedding_VE,
        layers=tuple(weights.layer(index) for index in range(config.num_layers)),
        final_norm_E=weights.tensor("model.norm.weight", config.hidden_size),
        head=weights.finished(head_linear),
        inv_freq_F=inverse_frequencies(config.rope, config.head_dim).to(to_device),
        passes=passes,
    )


@dataclass(frozen=True)
class _Weights:
    """Takes tensors from a checkpoint by their names in transformers."""

    checkpoint: Checkpoint
    config: ModelConfig
    dtype: dtype
    device: device
    packed: bool

    def tensor(self, name: str, *shape: int) -> Tensor:
        return self.checkpoint.take(name, shape, self.dtype, self.device)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool) -> Linear:
        weight_OI = self.tensor(f"{name}.weight", outputs, inputs)
        return Linear(weight_OI, self.tensor(f"{name}.bias", outputs) if bias else None)

    def qk_norm(self, attention: str) -> Tensor:
        q_D, k_D = (self.tensor(f"{attention}.{name}_norm.weight", self.config.head_dim) for name in ("q", "k"))
        return torch.cat((q_D.expand(self.config.num_heads, -1), k_D.expand(self.config.num_kv_heads, -1)))

    def finished(self, linear: Linear) -> AnyLinear:
        return pack(linear) if self.packed else linear

    def layer(self, index: int) -> DecoderLayer:
        c, prefix = self.config, f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        merge = self.device.type != "cpu" or self.packed

        qkv = [
            self.linear(f"{attention}.{name}_proj", size, c.hidden_size, bias=c.qkv_bias)
            for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size))
        ]
        gate_up = [
            self.linear(f"{mlp}.{name}_proj", c.intermediate_size, c.hidden_size, bias=c.mlp_bias)
            for name in ("gate", "up")
        ]

        return DecoderLayer(
            input_norm_E=self.tensor(f"{prefix}.input_layernorm.weight", c.hidden_size),
            qkv=parallel_linears(qkv, merge=merge, packed=self.packed),
            qk_norm_ND=self.qk_norm(attention) if c.qk_norm else None,
            output=self.finished(self.linear(f"{attention}.o_proj", c.hidden_size, q_size, bias=c.output_bias)),
            mlp_norm_E=self.tensor(f"{prefix}.post_attention_layernorm.weight", c.hidden_size),
            gate_up=parallel_linears(gate_up, merge=merge, packed=self.packed),
            down=self.finished(self.linear(f"{mlp}.down_proj", c.hidden_size, c.intermediate_size, bias=c.mlp_bias)),
        )
