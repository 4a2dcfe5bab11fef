"""One decoder for every supported architecture: the embedding, layers made of parts, the final norm, the head.

It has the order of operations and the names of the checkpoint's tensors outside of layers.
Shapes: T tokens, D head_dim, E hidden, L wanted rows, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, device, dtype

from model.attention import AttentionBackend
from model.checkpoint import Checkpoint
from model.collectives import Collectives
from model.cpu_kernels import CpuKernels
from model.cpu_layers import CpuLayers, is_decodes
from model.cpu_products import CpuLinear
from model.host_memory import give_back
from model.inputs import ModelInput
from model.layer import DecoderLayer, LayerPass
from model.linear import AnyLinear, Linear, Pack
from model.paged_kv import PagedKv
from model.passes import Passes, Rope
from model.weights import Weights
from runtime.model_config import ModelConfig

PREFIXES: Final = ("model", "language_model.model", "model.language_model")  # of the names of tensors; with other parts


@dataclass(frozen=True)
class Decoder:
    """Weights of the whole model on one device."""

    config: ModelConfig
    embedding_VE: Tensor
    layers: tuple[DecoderLayer, ...]
    final_norm_E: Tensor
    head: AnyLinear
    ropes: tuple[Rope, ...]
    passes: Passes
    embedding_scale: float | None = None
    at_once: CpuLayers | None = None  # the layers, for forwards that can run them in one call

    def forward(
        self, inp: ModelInput, kv: PagedKv, attention: AttentionBackend, on_layer: Callable[[int], None] | None
    ) -> Tensor:
        """Logits (L, V) float32. Writes K and V of all T tokens at their slots, layer by layer."""
        return self.logits(self.hidden(inp, kv, attention, on_layer))

    def logits(self, hidden_LE: Tensor) -> Tensor:
        """Logits (L, V) float32 of hidden states."""
        logits_LV, cap = self.head(hidden_LE), self.config.logit_cap
        return (logits_LV if cap is None else (logits_LV / cap).tanh() * cap).float()

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
        if self.embedding_scale is not None:
            x_TE = x_TE * self.embedding_scale
        if self.at_once is not None and in_one_call and is_decodes(plan := attention.plan(inp, kv.layout.layer(0))):
            x_TE, inputs = self.at_once.run(x_TE, inp, kv, plan, feature_layers)
            x_LE = x_TE if wanted_L is None else x_TE.index_select(0, wanted_L)
            return self.passes.rms_norm(x_LE, self.final_norm_E), inputs

        through = LayerPass.begin(self.passes, attention, inp, kv, self.ropes, on_layer, self.layers)
        last = len(self.layers) - 1
        few = wanted_L is not None and wanted_L.numel() < x_TE.shape[0] and self.layers[last].feed.is_alone
        next_norms = (*(layer.input_norm_E for layer in self.layers[1:]), self.final_norm_E)
        normed_TE, inputs = None, list[Tensor]()
        for index, (layer, next_norm_E) in enumerate(zip(self.layers, next_norms, strict=True)):
            if index in feature_layers:
                inputs.append(x_TE)
            rows_L = wanted_L if few and index == last else None
            x_TE, normed_TE = through.run(index, layer, x_TE, normed_TE, next_norm_E=next_norm_E, wanted_L=rows_L)
        assert normed_TE is not None
        return normed_TE if few or wanted_L is None else normed_TE.index_select(0, wanted_L), inputs


def text_prefix(checkpoint: Checkpoint) -> str:
    """What the names of the decoder's tensors begin with."""
    return next((prefix for prefix in PREFIXES if f"{prefix}.embed_tokens.weight" in checkpoint), PREFIXES[0])


def load_decoder(
    checkpoint: Checkpoint,
    config: ModelConfig,
    passes: Passes,
    *,
    to_dtype: dtype,
    to_device: device,
    pack: Pack | None = None,
    collectives: Collectives | None = None,
    served: dtype | None = None,
) -> Decoder:
    """Loads and checks the weights that `config` implies. CheckpointError names the first that does not fit.

    `pack` lays out the weights of linears. That is faster, but takes this worker's own memory. With `collectives` the
    ranks of a group share the MLPs. `served` is the dtype that the model has; None: `to_dtype`.
    """
    prefix = text_prefix(checkpoint)
    kernels = passes if isinstance(passes, CpuKernels) else None
    weights = Weights(checkpoint, config, to_dtype, to_device, pack, collectives, kernels)
    sizes = (config.vocab_size, config.hidden_size)
    embedding, head = f"{prefix}.embed_tokens", "lm_head"
    if config.tie_word_embeddings:  # the tensor may have either name; if both exist, each is used, as in transformers
        embedding = embedding if f"{embedding}.weight" in checkpoint else head
        head = head if f"{head}.weight" in checkpoint else embedding
    embedding_VE = weights.tensor(f"{embedding}.weight", *sizes)
    head_linear = Linear(embedding_VE) if head == embedding else weights.unpacked(head, *sizes, bias=False)

    layers = tuple(_layers(weights, prefix))
    ropes = tuple(Rope.of(rope, config.head_dim, to_device) for rope in config.ropes)
    scale = torch.tensor(config.hidden_size**0.5, dtype=served or to_dtype)  # transformers rounds it like the weights
    return Decoder(
        config=config,
        embedding_VE=embedding_VE,
        layers=layers,
        final_norm_E=weights.norm(f"{prefix}.norm.weight", config.hidden_size),
        head=weights.finished(head_linear),
        ropes=ropes,
        passes=passes,
        embedding_scale=float(scale) if config.scales_embeddings else None,
        at_once=_at_once(layers, passes, ropes),
    )


def _layers(weights: Weights, prefix: str) -> Iterator[DecoderLayer]:
    """The layers, one by one. Memory that a layer took while it was read is given back before the next."""
    for index, layer in enumerate(weights.config.layers):
        yield weights.layer(f"{prefix}.layers.{index}", layer)
        give_back()


def _at_once(layers: Sequence[DecoderLayer], passes: Passes, ropes: tuple[Rope, ...]) -> CpuLayers | None:
    """The layers for cpu_layers.c, if they have what it computes with."""
    if not isinstance(passes, CpuKernels) or len(ropes) > 1 or ropes[0].factor != 1.0:
        return None
    in_c = [layer.in_c for layer in layers if layer.input_norm_E is not None]
    all_layers = [layer for layer in in_c if layer is not None]
    if len(all_layers) < len(layers):
        return None
    output = layers[0].mixer.output
    assert isinstance(output, CpuLinear)
    return CpuLayers.of(passes, all_layers, output.dtype, ropes[0].inv_freq_F)
