"""One decoder for every supported architecture. Architectures differ in their optional weights, not in code.

It has the order of operations, the linear layers and the names of the checkpoint's tensors. Numerics follow
transformers.
Shapes: T tokens, H query heads, K kv heads, D head_dim, E hidden, L wanted rows, V vocabulary, I inputs, O outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, device, dtype

from model.attention import AttentionBackend
from model.checkpoint import Checkpoint
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.passes import Passes, Rotation, Rows, inverse_frequencies
from runtime.model_config import ModelConfig

_PACKED_FOR_ROWS: Final = 16  # a hint to oneDNN; other numbers of rows run as well


@dataclass(frozen=True)
class Linear:
    """y = x @ weight.T + bias."""

    weight_OI: Tensor
    bias_O: Tensor | None = None

    def __call__(self, x_TI: Tensor) -> Tensor:
        return F.linear(x_TI, self.weight_OI, self.bias_O)

    def added_to(self, residual_TO: Tensor, x_TI: Tensor) -> Tensor:
        """residual + y."""
        return residual_TO + self(x_TI)


@dataclass(frozen=True)
class PackedLinear:
    """A Linear whose weight is laid out once for oneDNN's kernels, not at every call.

    The weight is a copy, so the workers of a host do not share it.
    """

    packed: Tensor
    bias_O: Tensor | None

    def __call__(self, x_TI: Tensor) -> Tensor:
        y_TO: Tensor = torch.ops.mkldnn._linear_pointwise.default(x_TI, self.packed, self.bias_O, "none", [], "")
        return y_TO

    def added_to(self, residual_TO: Tensor, x_TI: Tensor) -> Tensor:
        """residual + y in one pass, rounded once."""
        y_TO: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x_TI, residual_TO, self.packed, self.bias_O, "add")
        return y_TO


AnyLinear = Linear | PackedLinear


def can_pack(weight: Tensor) -> bool:
    """Whether this torch and CPU can pack this weight."""
    known = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    kind = weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and has_fast_bfloat16())
    return known and weight.device.type == "cpu" and kind


def has_fast_bfloat16() -> bool:
    """Whether oneDNN has fast bfloat16 products on this CPU. Without them float32 is far faster."""
    known = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(known is not None and known())


def pack(linear: Linear) -> AnyLinear:
    """`linear` packed, if that is possible."""
    if not can_pack(linear.weight_OI):
        return linear
    return PackedLinear(torch.ops.mkldnn._reorder_linear_weight(linear.weight_OI, _PACKED_FOR_ROWS), linear.bias_O)


@dataclass(frozen=True)
class ParallelLinears:
    """Several linears of one input (q, k, v; gate, up), merged into one product or left apart.

    Merging copies the weights. On a device, or packed, they are copied anyway, and one large product is faster.
    Otherwise they stay views over the mapped checkpoint, and the workers of a host share them.
    """

    linears: tuple[AnyLinear, ...]

    def __call__(self, x_TI: Tensor) -> tuple[Tensor, ...]:
        """One product for all, or one for each."""
        return tuple([linear(x_TI) for linear in self.linears])


def parallel_linears(linears: Sequence[Linear], *, merge: bool, packed: bool = False) -> ParallelLinears:
    """Joins linears, of which all or none have a bias. `merge` merges them; `packed` packs the merged one."""
    if not merge:
        return ParallelLinears(tuple(linears))
    biases = [linear.bias_O for linear in linears if linear.bias_O is not None]
    assert len(biases) in (0, len(linears))
    merged = Linear(torch.cat([linear.weight_OI for linear in linears]), torch.cat(biases) if biases else None)
    return ParallelLinears((pack(merged) if packed else merged,))


@dataclass(frozen=True)
class DecoderLayer:
    """Weights of one layer. `qk_norm_ND` is None in architectures without a q/k norm."""

    input_norm_E: Tensor | None  # None: the layer of an EAGLE draft that has none
    qkv: ParallelLinears
    qk_norm_ND: Tensor | None  # N = H + K: the q norm for every query head, then the k norm for every kv head
    output: AnyLinear
    mlp_norm_E: Tensor
    gate_up: ParallelLinears
    down: AnyLinear


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
        return cls(passes, attention, kv, on_layer, rotation, kv.token_rows(inp.slots_T), plan)

    def run(self, index: int, layer: DecoderLayer, x_TE: Tensor, inputs_TI: Tensor | None = None) -> Tensor:
        """The output (T, E) of layer `index`, whose residual stream is `x_TE`; x_TE itself if it only writes K and V.

        Attention reads `inputs_TI`; None: the input norm of x_TE, or x_TE itself if the layer has no such norm.
        """
        passes = self.passes
        if inputs_TI is None:
            inputs_TI = x_TE if layer.input_norm_E is None else passes.rms_norm(x_TE, layer.input_norm_E)
        q_THD = passes.place(layer.qkv(inputs_TI), layer.qk_norm_ND, self.rotation, self.kv, index, self.rows)
        if self.on_layer is not None:
            self.on_layer(index)
        if self.plan is None:
            return x_TE

        attended_THD = self.attention.attend(q_THD, self.kv.layer(index), self.plan)
        x_TE = layer.output.added_to(x_TE, attended_THD.flatten(1))
        gate_up = layer.gate_up(passes.rms_norm(x_TE, layer.mlp_norm_E))
        return layer.down.added_to(x_TE, passes.gated(gate_up))


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
        x_TE, _ = self._layers(inp, kv, attention, on_layer, ())
        return self.head(self.passes.rms_norm(x_TE.index_select(0, inp.logit_indices_L), self.final_norm_E)).float()

    def forward_with_features(
        self,
        inp: ModelInput,
        kv: PagedKv,
        attention: AttentionBackend,
        on_layer: Callable[[int], None] | None,
        feature_layers: tuple[int, ...],
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, and the features (T, F): the inputs of `feature_layers`, side by side, (T, E) each.

        Without such layers they are the output of the final norm.
        """
        x_TE, inputs = self._layers(inp, kv, attention, on_layer, feature_layers)
        normed_TE = self.passes.rms_norm(x_TE, self.final_norm_E)
        logits_LV = self.head(normed_TE.index_select(0, inp.logit_indices_L)).float()
        return logits_LV, torch.cat(inputs, dim=-1) if inputs else normed_TE

    def _layers(
        self,
        inp: ModelInput,
        kv: PagedKv,
        attention: AttentionBackend,
        on_layer: Callable[[int], None] | None,
        feature_layers: tuple[int, ...],
    ) -> tuple[Tensor, list[Tensor]]:
        """The output of the last layer, and the inputs of `feature_layers`, (T, E) each."""
        through = LayerPass.begin(self.passes, attention, inp, kv, self.inv_freq_F, on_layer)
        x_TE = F.embedding(inp.input_ids_T, self.embedding_VE)
        inputs = []
        for index, layer in enumerate(self.layers):
            if index in feature_layers:
                inputs.append(x_TE)
            x_TE = through.run(index, layer, x_TE)
        return x_TE, inputs


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
    weights = Weights(checkpoint, config, to_dtype, to_device, packed)
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
        layers=tuple(weights.layer(f"model.layers.{index}") for index in range(config.num_layers)),
        final_norm_E=weights.tensor("model.norm.weight", config.hidden_size),
        head=weights.finished(head_linear),
        inv_freq_F=inverse_frequencies(config.rope, config.head_dim).to(to_device),
        passes=passes,
    )


@dataclass(frozen=True)
class Weights:
    """Takes tensors from a checkpoint by their names in transformers. CheckpointError names one that does not fit."""

    checkpoint: Checkpoint
    config: ModelConfig
    dtype: dtype
    device: device
    packed: bool

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`."""
        return self.checkpoint.take(name, shape, self.dtype, self.device)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool) -> Linear:
        """The linear of `name`.weight and, with `bias`, `name`.bias."""
        weight_OI = self.tensor(f"{name}.weight", outputs, inputs)
        return Linear(weight_OI, self.tensor(f"{name}.bias", outputs) if bias else None)

    def _qk_norm(self, attention: str) -> Tensor:
        q_D, k_D = (self.tensor(f"{attention}.{name}_norm.weight", self.config.head_dim) for name in ("q", "k"))
        return torch.cat((q_D.expand(self.config.num_heads, -1), k_D.expand(self.config.num_kv_heads, -1)))

    def finished(self, linear: Linear) -> AnyLinear:
        """`linear`, packed if that is wanted and possible."""
        return pack(linear) if self.packed else linear

    def head(self, outputs: int) -> AnyLinear:
        """The checkpoint's head, without a bias."""
        return self.finished(self.linear("lm_head", outputs, self.config.hidden_size, bias=False))

    def layer(self, prefix: str, *, num_inputs: int = 0, may_lack_norm: bool = False) -> DecoderLayer:
        """The layer whose tensors begin with `prefix`. Attention reads `num_inputs` numbers, or hidden_size if 0.

        With `may_lack_norm` it may have no norm of its input.
        """
        c, norm = self.config, f"{prefix}.input_layernorm.weight"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        merge = self.device.type != "cpu" or self.packed

        qkv = [
            self.linear(f"{attention}.{name}_proj", size, num_inputs or c.hidden_size, bias=c.qkv_bias)
            for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size))
        ]
        gate_up = [
            self.linear(f"{mlp}.{name}_proj", c.intermediate_size, c.hidden_size, bias=c.mlp_bias)
            for name in ("gate", "up")
        ]

        return DecoderLayer(
            input_norm_E=None if may_lack_norm and norm not in self.checkpoint else self.tensor(norm, c.hidden_size),
            qkv=parallel_linears(qkv, merge=merge, packed=self.packed),
            qk_norm_ND=self._qk_norm(attention) if c.qk_norm else None,
            output=self.finished(self.linear(f"{attention}.o_proj", c.hidden_size, q_size, bias=c.output_bias)),
            mlp_norm_E=self.tensor(f"{prefix}.post_attention_layernorm.weight", c.hidden_size),
            gate_up=parallel_linears(gate_up, merge=merge, packed=self.packed),
            down=self.finished(self.linear(f"{mlp}.down_proj", c.hidden_size, c.intermediate_size, bias=c.mlp_bias)),
        )
