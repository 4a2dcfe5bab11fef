"""One decoder for every supported architecture. Architectures differ in their optional weights, not in code.

It has the order of operations and the names of the checkpoint's tensors. Numerics follow transformers.
Shapes: T tokens, H query heads, K kv heads, D head_dim, E hidden, L wanted rows, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, device, dtype

from model.attention import AttentionBackend
from model.checkpoint import Checkpoint, Part
from model.collectives import Collectives
from model.cpu_kernels import CpuKernels
from model.cpu_layers import CLayer, CpuLayers, is_decodes
from model.cpu_products import Bfloat16Linear
from model.inputs import ModelInput
from model.linear import AnyLinear, Linear, Pack, ParallelLinears, parallel_linears
from model.mlp import AnyMlp, Mlp, ShardedMlp
from model.paged_kv import PagedKv
from model.passes import Passes, Rotation, Rows, inverse_frequencies
from protocol.messages_group import StepShape
from runtime.model_config import ModelConfig


@dataclass(frozen=True)
class DecoderLayer:
    """Weights of one layer. `qk_norm_ND` is None in architectures without a q/k norm."""

    input_norm_E: Tensor | None  # None: the layer of an EAGLE draft that has none
    qkv: ParallelLinears
    qk_norm_ND: Tensor | None  # N = H + K: the q norm for every query head, then the k norm for every kv head
    output: AnyLinear
    mlp_norm_E: Tensor
    mlp: AnyMlp

    @property
    def in_c(self) -> CLayer | None:
        """The layer for cpu_layers.c, if it has what that computes with. It is valid as long as this object lives."""
        if not isinstance(self.mlp, Mlp):
            return None
        linears = (*self.qkv.linears, self.output, *self.mlp.gate_up.linears, self.mlp.down)
        products = [linear for linear in linears if isinstance(linear, Bfloat16Linear)]
        if len(products) < len(linears):
            return None
        return CLayer.of(self.input_norm_E, self.qk_norm_ND, self.mlp_norm_E, products)


@dataclass(frozen=True)
class LayerPass:
    """What the layers of one forward share. `first_layer` tells the group of KV layers that they belong to."""

    passes: Passes
    attention: AttentionBackend
    kv: PagedKv
    on_layer: Callable[[int], None] | None
    rotation: Rotation
    rows: Rows
    plan: Any  # the attention backend's; None: the layers write K and V, and compute nothing else
    step: StepShape | None  # of the group's ranks

    @classmethod
    def begin(
        cls,
        passes: Passes,
        attention: AttentionBackend,
        inp: ModelInput,
        kv: PagedKv,
        inv_freq_F: Tensor,
        on_layer: Callable[[int], None] | None,
        first_layer: int = 0,
        *,
        attends: bool = True,
    ) -> "LayerPass":
        """The pass of `inp` through layers of the group that `first_layer` is in."""
        rotation = passes.rotation(inp.positions_T, inv_freq_F)
        plan = attention.plan(inp, kv.layout.layer(first_layer)) if attends else None
        return cls(passes, attention, kv, on_layer, rotation, kv.token_rows(inp.slots_T), plan, inp.step)

    def run(
        self,
        index: int,
        layer: DecoderLayer,
        x_TE: Tensor,
        inputs_TI: Tensor | None = None,
        *,
        next_norm_E: Tensor | None = None,
        wanted_L: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The output (T, E) of layer `index`, whose residual stream is `x_TE`, and the norm of the output.

        Attention reads `inputs_TI`; None: the input norm of x_TE, or x_TE itself if the layer has no such norm. The
        output's norm has the weight `next_norm_E`; None: it is the output itself. With `wanted_L` both are those of
        these rows only, (L, E). A layer that only writes K and V returns x_TE for both.
        """
        passes = self.passes
        if inputs_TI is None:
            inputs_TI = x_TE if layer.input_norm_E is None else passes.rms_norm(x_TE, layer.input_norm_E)
        q_THD = passes.place(layer.qkv(inputs_TI), layer.qk_norm_ND, self.rotation, self.kv, index, self.rows)
        if self.on_layer is not None:
            self.on_layer(index)
        if self.plan is None:
            return x_TE, x_TE

        attended_THD = self.attention.attend(q_THD, self.kv.layer(index), self.plan)
        attended_TN = attended_THD.flatten(1)
        if wanted_L is not None:
            x_TE, attended_TN = x_TE.index_select(0, wanted_L), attended_TN.index_select(0, wanted_L)
        x_TE, normed_TE = layer.output.added_norm(x_TE, attended_TN, passes, layer.mlp_norm_E)
        if next_norm_E is not None:
            return layer.mlp.added_norm(x_TE, normed_TE, passes, self.step, next_norm_E)
        x_TE = layer.mlp.added_to(x_TE, normed_TE, passes, self.step)
        return x_TE, x_TE


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
    at_once: CpuLayers | None = None  # the layers, for forwards that can run them in one call

    def forward(
        self, inp: ModelInput, kv: PagedKv, attention: AttentionBackend, on_layer: Callable[[int], None] | None
    ) -> Tensor:
        """Logits (L, V) float32. Writes K and V of all T tokens at their slots, layer by layer."""
        return self.logits(self.hidden(inp, kv, attention, on_layer))

    def logits(self, hidden_LE: Tensor) -> Tensor:
        """Logits (L, V) float32 of hidden states."""
        return self.head(hidden_LE).float()

    def hidden(
        self, inp: ModelInput, kv: PagedKv, attention: AttentionBackend, on_layer: Callable[[int], None] | None
    ) -> Tensor:
        """As `forward`, but the hidden states (L, E) of the wanted rows: the output of the final norm."""
        return self._layers(inp, kv, attention, on_layer, (), wanted_L=inp.logit_indices_L)[0]

    def hidden_with_features(
        self,
        inp: ModelInput,
        kv: PagedKv,
        attention: AttentionBackend,
        on_layer: Callable[[int], None] | None,
        feature_layers: tuple[int, ...],
    ) -> tuple[Tensor, Tensor]:
        """As `hidden`, and the features (T, F): the inputs of `feature_layers`, side by side, (T, E) each.

        Without such layers they are the output of the final norm.
        """
        if feature_layers:
            hidden_LE, inputs = self._layers(inp, kv, attention, on_layer, feature_layers, wanted_L=inp.logit_indices_L)
            return hidden_LE, torch.cat(inputs, dim=-1)
        normed_TE, _ = self._layers(inp, kv, attention, on_layer, ())
        return normed_TE.index_select(0, inp.logit_indices_L), normed_TE

    def _layers(
        self,
        inp: ModelInput,
        kv: PagedKv,
        attention: AttentionBackend,
        on_layer: Callable[[int], None] | None,
        feature_layers: tuple[int, ...],
        wanted_L: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """The output of the final norm, and the inputs of `feature_layers`, (T, E) each. With `wanted_L` the output is
        that of these rows only, (L, E)."""
        in_one_call = on_layer is None and not inp.extend_lens
        if self.at_once is not None and not in_one_call:
            self.at_once.kernels.threads.before_long_call()
        x_TE = F.embedding(inp.input_ids_T, self.embedding_VE)
        if self.at_once is not None and in_one_call and is_decodes(plan := attention.plan(inp, kv.layout.layer(0))):
            x_TE, inputs = self.at_once.run(x_TE, inp, kv, plan, feature_layers)
            x_LE = x_TE if wanted_L is None else x_TE.index_select(0, wanted_L)
            return self.passes.rms_norm(x_LE, self.final_norm_E), inputs

        through = LayerPass.begin(self.passes, attention, inp, kv, self.inv_freq_F, on_layer)
        last = len(self.layers) - 1
        few = wanted_L is not None and wanted_L.numel() < x_TE.shape[0] and isinstance(self.layers[last].mlp, Mlp)
        next_norms = (*(layer.input_norm_E for layer in self.layers[1:]), self.final_norm_E)
        normed_TE, inputs = None, list[Tensor]()
        for index, (layer, next_norm_E) in enumerate(zip(self.layers, next_norms, strict=True)):
            if index in feature_layers:
                inputs.append(x_TE)
            rows_L = wanted_L if few and index == last else None
            x_TE, normed_TE = through.run(index, layer, x_TE, normed_TE, next_norm_E=next_norm_E, wanted_L=rows_L)
        assert normed_TE is not None
        return normed_TE if few or wanted_L is None else normed_TE.index_select(0, wanted_L), inputs


def load_decoder(
    checkpoint: Checkpoint,
    config: ModelConfig,
    passes: Passes,
    *,
    to_dtype: dtype,
    to_device: device,
    pack: Pack | None = None,
    collectives: Collectives | None = None,
) -> Decoder:
    """Loads and checks the weights that `config` implies. CheckpointError names the first that does not fit.

    `pack` lays out the weights of linears. That is faster, but takes this worker's own memory. With `collectives` the
    ranks of a group share the MLPs.
    """
    weights = Weights(checkpoint, config, to_dtype, to_device, pack, collectives)
    sizes = (config.vocab_size, config.hidden_size)
    embedding, head = "model.embed_tokens", "lm_head"
    if config.tie_word_embeddings:  # the tensor may have either name; if both exist, each is used, as in transformers
        embedding = embedding if f"{embedding}.weight" in checkpoint else head
        head = head if f"{head}.weight" in checkpoint else embedding
    embedding_VE = weights.tensor(f"{embedding}.weight", *sizes)
    head_linear = Linear(embedding_VE) if head == embedding else weights.linear(head, *sizes, bias=False)

    layers = tuple(weights.layer(f"model.layers.{index}") for index in range(config.num_layers))
    inv_freq_F = inverse_frequencies(config.rope, config.head_dim).to(to_device)
    return Decoder(
        config=config,
        embedding_VE=embedding_VE,
        layers=layers,
        final_norm_E=weights.tensor("model.norm.weight", config.hidden_size),
        head=weights.finished(head_linear),
        inv_freq_F=inv_freq_F,
        passes=passes,
        at_once=_at_once(layers, passes, inv_freq_F),
    )


def _at_once(layers: Sequence[DecoderLayer], passes: Passes, inv_freq_F: Tensor) -> CpuLayers | None:
    """The layers for cpu_layers.c, if they have what it computes with."""
    if not isinstance(passes, CpuKernels):
        return None
    in_c = [layer.in_c for layer in layers if layer.input_norm_E is not None]
    found = [layer for layer in in_c if layer is not None]
    if len(found) < len(layers):
        return None
    output = layers[0].output
    assert isinstance(output, Bfloat16Linear)
    return CpuLayers.of(passes, found, output.dtype, inv_freq_F)


@dataclass(frozen=True)
class Weights:
    """Takes tensors from a checkpoint by their names in transformers. CheckpointError names one that does not fit."""

    checkpoint: Checkpoint
    config: ModelConfig
    dtype: dtype
    device: device
    pack: Pack | None
    collectives: Collectives | None = None  # of the ranks that share the MLPs

    def tensor(self, name: str, *shape: int, part: Part | None = None) -> Tensor:
        """The tensor `name`, or a part of it. `shape` is that of the whole tensor."""
        return self.checkpoint.take(name, shape, self.dtype, self.device, part)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool, part: Part | None = None) -> Linear:
        """The linear of `name`.weight and, with `bias`, `name`.bias. With `part` these outputs or inputs only."""
        weight_OI = self.tensor(f"{name}.weight", outputs, inputs, part=part)
        return Linear(weight_OI, self.tensor(f"{name}.bias", outputs, part=part) if bias else None)

    def _qk_norm(self, attention: str) -> Tensor:
        q_D, k_D = (self.tensor(f"{attention}.{name}_norm.weight", self.config.head_dim) for name in ("q", "k"))
        return torch.cat((q_D.expand(self.config.num_heads, -1), k_D.expand(self.config.num_kv_heads, -1)))

    def finished(self, linear: Linear) -> AnyLinear:
        """`linear`, packed if that is wanted."""
        return self.pack(linear) if self.pack else linear

    def head(self, outputs: int) -> AnyLinear:
        """The checkpoint's head, without a bias."""
        return self.finished(self.linear("lm_head", outputs, self.config.hidden_size, bias=False))

    def layer(self, prefix: str, *, num_inputs: int = 0, may_lack_norm: bool = False) -> DecoderLayer:
        """The layer whose tensors begin with `prefix`. Attention reads `num_inputs` numbers, or hidden_size if 0.

        With `may_lack_norm` it may have no norm of its input.
        """
        c, norm = self.config, f"{prefix}.input_layernorm.weight"
        attention = f"{prefix}.self_attn"
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim

        qkv = [
            self.linear(f"{attention}.{name}_proj", size, num_inputs or c.hidden_size, bias=c.qkv_bias)
            for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size))
        ]
        return DecoderLayer(
            input_norm_E=None if may_lack_norm and norm not in self.checkpoint else self.tensor(norm, c.hidden_size),
            qkv=self._joined(qkv),
            qk_norm_ND=self._qk_norm(attention) if c.qk_norm else None,
            output=self.finished(self.linear(f"{attention}.o_proj", c.hidden_size, q_size, bias=c.output_bias)),
            mlp_norm_E=self.tensor(f"{prefix}.post_attention_layernorm.weight", c.hidden_size),
            mlp=self._mlp(f"{prefix}.mlp"),
        )

    def _mlp(self, prefix: str) -> AnyMlp:
        """The MLP, or this rank's share of it."""
        c, ranks, rows, columns = self.config, self.collectives, None, None
        if ranks is not None:
            size = c.intermediate_size // ranks.size
            rows, columns = (Part(dim, ranks.rank * size, size) for dim in (0, 1))

        gate_up = self._joined(
            [
                self.linear(f"{prefix}.{name}_proj", c.intermediate_size, c.hidden_size, bias=c.mlp_bias, part=rows)
                for name in ("gate", "up")
            ]
        )
        down, sizes = f"{prefix}.down_proj", (c.hidden_size, c.intermediate_size)
        if ranks is None:
            return Mlp(gate_up, self.finished(self.linear(down, *sizes, bias=c.mlp_bias)))
        share = self.finished(self.linear(down, *sizes, bias=False, part=columns))
        return ShardedMlp(gate_up, share, self.tensor(f"{down}.bias", c.hidden_size) if c.mlp_bias else None, ranks)

    def _joined(self, linears: Sequence[Linear]) -> ParallelLinears:
        merge = self.device.type != "cpu" or self.pack is not None
        return parallel_linears(linears, merge=merge, pack=self.pack)
