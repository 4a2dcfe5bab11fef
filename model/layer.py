"""One decoder layer: norm, mixer, addition, norm, feed, addition; and what the layers of one forward share.

The mixer is `Attention`, the feed is `Mlp`, or a share of one (`model/mlp.py`). Numerics follow transformers.
Shapes: T tokens, H query heads, K kv heads, D head_dim, E hidden, L wanted rows.
"""

from collections.abc import Callable
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
from model.passes import Passes, Rotation, Rows
from protocol.messages_group import StepShape


@dataclass(frozen=True)
class Attention:
    """A mixer: each token attends to those before it. q and k of each head may have a norm, or all heads together."""

    qkv: ParallelLinears
    output: AnyLinear
    qk_norm_ND: Tensor | None = None  # N = H + K: the q norm for every query head, then the k norm for every kv head
    norms_of_all: tuple[Tensor, Tensor] | None = None  # of all query heads (H * D), and of all kv heads (K * D)

    @property
    def linears(self) -> tuple[AnyLinear, ...]:
        """Its products, in order."""
        return (*self.qkv.linears, self.output)

    def place(self, inputs_TI: Tensor, through: "LayerPass", index: int) -> Tensor:
        """q (T, H, D). Writes K and V of layer `index`."""
        qkv = self.qkv(inputs_TI)
        if self.norms_of_all is not None:
            qkv = _normed(qkv, self.norms_of_all, through.passes)
        return through.passes.place(qkv, self.qk_norm_ND, through.rotation, through.kv, index, through.rows)

    def attend(self, q_THD: Tensor, through: "LayerPass", index: int) -> Tensor:
        """(T, H * D), over the K and V of layer `index`."""
        return through.attention.attend(q_THD, through.kv.layer(index), through.plan).flatten(1)


def _normed(qkv: tuple[Tensor, ...], norms: tuple[Tensor, Tensor], passes: Passes) -> tuple[Tensor, ...]:
    """q, k and v, with norms of q and k. `qkv` is these, or the three side by side."""
    q_norm_N, k_norm_N = norms
    if len(qkv) == 1:
        sizes = q_norm_N.numel(), k_norm_N.numel(), k_norm_N.numel()
        qkv = tuple(part_TN.contiguous() for part_TN in qkv[0].split(sizes, dim=-1))
    q_TN, k_TN, v_TN = qkv
    return passes.rms_norm(q_TN, q_norm_N), passes.rms_norm(k_TN, k_norm_N), v_TN


@dataclass(frozen=True)
class DecoderLayer:
    """The parts of one layer."""

    input_norm_E: Tensor | None  # None: the layer of an EAGLE draft that has none
    mixer: Attention
    feed_norm_E: Tensor
    feed: Feed

    @property
    def in_c(self) -> CLayer | None:
        """The layer for cpu_layers.c, if it has what that computes with. It is valid as long as this object lives."""
        mixer, feed = for_c(self.mixer.linears), self.feed
        of_feed = feed if isinstance(feed, CpuExperts) else for_c(feed.linears or ())
        if not mixer or not of_feed or self.mixer.norms_of_all is not None:
            return None
        return CLayer.of(self.input_norm_E, mixer, self.mixer.qk_norm_ND, self.feed_norm_E, of_feed)


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
        passes, mixer, feed = self.passes, layer.mixer, layer.feed
        if inputs_TI is None:
            inputs_TI = x_TE if layer.input_norm_E is None else passes.rms_norm(x_TE, layer.input_norm_E)
        q_THD = mixer.place(inputs_TI, self, index)
        if self.on_layer is not None:
            self.on_layer(index)
        if self.plan is None:
            return x_TE, x_TE

        attended_TN = mixer.attend(q_THD, self, index)
        if wanted_L is not None:
            x_TE, attended_TN = x_TE.index_select(0, wanted_L), attended_TN.index_select(0, wanted_L)
        x_TE, normed_TE = mixer.output.added_norm(x_TE, attended_TN, passes, layer.feed_norm_E)
        if next_norm_E is not None:
            return feed.added_norm(x_TE, normed_TE, passes, self.step, next_norm_E)
        x_TE = feed.added_to(x_TE, normed_TE, passes, self.step)
        return x_TE, x_TE
