"""One decoder layer: norm, mixer, addition, norm, feed, addition; and what the layers of one forward share.

What mixer and feed give may have a norm, too, before it is added.

The mixer is `Attention`, the feed is `Mlp`, or a share of one (`model/mlp.py`). Numerics follow transformers.
Shapes: T tokens, H query heads, K kv heads, D head_dim, E hidden, L wanted rows.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from model.attention import AttentionBackend
from model.cpu_experts import CpuExperts
from model.cpu_layers import CLayer
from model.cpu_products import for_c
from model.inputs import ModelInput
from model.linear import AnyLinear, ParallelLinears
from model.mlp import Feed
from model.paged_kv import PagedKv
from model.passes import Passes, Rope, Rotation, Rows
from model.scoring import PLAIN, Scoring
from protocol.messages_group import StepShape


@dataclass(frozen=True)
class Attention:
    """A mixer: each token attends to those before it. q and k of each head may have a norm, or all heads together."""

    qkv: ParallelLinears
    output: AnyLinear
    qk_norm_ND: Tensor | None = None  # N = H + K: the q norm for every query head, then the k norm for every kv head
    norms_before: tuple[Tensor, Tensor] | None = None  # of q and k, before the pass: of all heads together, or of one
    scoring: Scoring = PLAIN
    rope: int = 0  # which of the model's ropes

    @property
    def linears(self) -> tuple[AnyLinear, ...]:
        """Its products, in order."""
        return (*self.qkv.linears, self.output)

    def place(self, inputs_TI: Tensor, through: "LayerPass", index: int) -> Tensor:
        """q (T, H, D). Writes K and V of layer `index`."""
        qkv = self.qkv(inputs_TI)
        if self.norms_before is not None:
            qkv = _normed(qkv, self.norms_before, through, index)
        rotation = through.rotations[self.rope]
        return through.passes.place(qkv, self.qk_norm_ND, rotation, through.kv, index, through.rows)

    def attend(self, q_THD: Tensor, through: "LayerPass", index: int) -> Tensor:
        """(T, H * D), over the K and V of layer `index`."""
        plan = through.plans[self.scoring.window]
        return through.attention.attend(q_THD, through.kv.layer(index), plan, self.scoring).flatten(1)


def _normed(
    qkv: tuple[Tensor, ...], norms: tuple[Tensor, Tensor], through: "LayerPass", index: int
) -> tuple[Tensor, ...]:
    """q, k and v, with norms of q and k. `qkv` is these, or the three side by side."""
    if len(qkv) == 1:
        kv_size = through.kv.layer(index)[0, 0, 0].numel()
        sizes = qkv[0].shape[-1] - 2 * kv_size, kv_size, kv_size
        qkv = tuple(part_TN.contiguous() for part_TN in qkv[0].split(sizes, dim=-1))
    q_TN, k_TN = (
        through.passes.rms_norm(part_TN.view(-1, norm_N.numel()), norm_N).view(part_TN.shape)
        for part_TN, norm_N in zip(qkv, norms, strict=False)
    )
    return q_TN, k_TN, qkv[2]


@dataclass(frozen=True)
class DecoderLayer:
    """The parts of one layer."""

    input_norm_E: Tensor | None  # None: the layer of an EAGLE draft that has none
    mixer: Attention
    feed_norm_E: Tensor
    feed: Feed
    mixed_norm_E: Tensor | None = None  # both, or neither: of what the mixer gives
    fed_norm_E: Tensor | None = None  # of what the feed gives

    @property
    def in_c(self) -> CLayer | None:
        """The layer for cpu_layers.c, if it has what that computes with. It is valid as long as this object lives."""
        mixer, feed = for_c(self.mixer.linears), self.feed
        of_feed = feed if isinstance(feed, CpuExperts) else for_c(feed.linears or ())
        if not mixer or not of_feed or self.mixer.norms_before is not None or self.mixed_norm_E is not None:
            return None
        scoring = self.mixer.scoring
        return CLayer.of(self.input_norm_E, mixer, self.mixer.qk_norm_ND, scoring, self.feed_norm_E, of_feed)


@dataclass(frozen=True)
class LayerPass:
    """What the layers of one forward share. `first_layer` tells the group of KV layers that they belong to."""

    passes: Passes
    attention: AttentionBackend
    kv: PagedKv
    on_layer: Callable[[int], None] | None
    rotations: tuple[Rotation, ...]  # of the model's ropes
    rows: Rows
    plans: Mapping[int, Any]  # the attention backend's, by window; empty: the layers only write K and V
    step: StepShape | None  # of the group's ranks

    @classmethod
    def begin(
        cls,
        passes: Passes,
        attention: AttentionBackend,
        inp: ModelInput,
        kv: PagedKv,
        ropes: tuple[Rope, ...],
        on_layer: Callable[[int], None] | None,
        layers: Iterable[DecoderLayer],
        first_layer: int = 0,
        *,
        attends: bool = True,
    ) -> "LayerPass":
        """The pass of `inp` through `layers`, whose first one is `first_layer` in KV."""
        rotations = tuple(rope.rotation(inp.positions_T, passes) for rope in ropes)
        layout = kv.layout.layer(first_layer)
        windows = sorted({layer.mixer.scoring.window for layer in layers}) if attends else ()
        plans = {window: attention.plan(inp, layout, window) for window in windows}
        return cls(passes, attention, kv, on_layer, rotations, kv.token_rows(inp.slots_T), plans, inp.step)

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
        passes, mixer, feed = self.passes, layer.mixer, layer.feed
        if inputs_TI is None:
            inputs_TI = x_TE if layer.input_norm_E is None else passes.rms_norm(x_TE, layer.input_norm_E)
        q_THD = mixer.place(inputs_TI, self, index)
        if self.on_layer is not None:
            self.on_layer(index)
        if not self.plans:
            return x_TE, x_TE

        attended_TN = mixer.attend(q_THD, self, index)
        if wanted_L is not None:
            x_TE, attended_TN = x_TE.index_select(0, wanted_L), attended_TN.index_select(0, wanted_L)
        if layer.mixed_norm_E is not None and layer.fed_norm_E is not None:
            y_TE = passes.rms_norm(mixer.output(attended_TN), layer.mixed_norm_E)
            x_TE, normed_TE = passes.added_norm(x_TE, y_TE, layer.feed_norm_E)
            y_TE = passes.rms_norm(feed.result(normed_TE, passes, self.step), layer.fed_norm_E)
            return (x_TE + y_TE,) * 2 if next_norm_E is None else passes.added_norm(x_TE, y_TE, next_norm_E)

        x_TE, normed_TE = mixer.output.added_norm(x_TE, attended_TN, passes, layer.feed_norm_E)
        if next_norm_E is not None:
            return feed.added_norm(x_TE, normed_TE, passes, self.step, next_norm_E)
        x_TE = feed.added_to(x_TE, normed_TE, passes, self.step)
        return x_TE, x_TE
