"""Makes the parts of layers from a checkpoint's tensors. Each linear says how the ranks of a group cut it.

    Cut.WHOLE     every rank has all of it
    Cut.OUTPUTS   a rank has some rows of the weight, and their biases: gate, up
    Cut.INPUTS    a rank has some columns of the weight: down, whose bias is added once, to the sum of all ranks

Shapes: N = H + K heads, D head_dim, E hidden, I inputs, O outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor, device, dtype

from model.checkpoint import Checkpoint, Part
from model.collectives import Collectives
from model.layer import Attention, DecoderLayer
from model.linear import AnyLinear, Linear, Pack, ParallelLinears, parallel_linears
from model.mlp import Feed, Mlp, Sharded
from runtime.model_config import ModelConfig
from runtime.model_parts import AttentionConfig, LayerConfig, MlpConfig


class Cut(IntEnum):
    """How the ranks of a group cut a weight: the dimension of which each has a share."""

    WHOLE = -1
    OUTPUTS = 0
    INPUTS = 1


@dataclass(frozen=True)
class Weights:
    """Takes tensors from a checkpoint by their names in transformers. CheckpointError names one that does not fit."""

    checkpoint: Checkpoint
    config: ModelConfig
    dtype: dtype
    device: device
    pack: Pack | None
    collectives: Collectives | None = None  # of the ranks that share the feeds; None: all of them are whole

    def tensor(self, name: str, *shape: int, cut: Cut = Cut.WHOLE) -> Tensor:
        """The tensor `name`, or this rank's share of it. `shape` is that of the whole tensor."""
        ranks, part = self.collectives, None
        if ranks is not None and cut is not Cut.WHOLE:
            size = shape[cut] // ranks.size
            part = Part(cut, ranks.rank * size, size)
        return self.checkpoint.take(name, shape, self.dtype, self.device, part)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool, cut: Cut = Cut.WHOLE) -> Linear:
        """The linear of `name`.weight and, with `bias`, `name`.bias; or this rank's share of it."""
        weight_OI = self.tensor(f"{name}.weight", outputs, inputs, cut=cut)
        return Linear(weight_OI, self.tensor(f"{name}.bias", outputs, cut=cut) if bias else None)

    def finished(self, linear: Linear) -> AnyLinear:
        """`linear`, packed if that is wanted."""
        return self.pack(linear) if self.pack else linear

    def joined(self, linears: Sequence[Linear]) -> ParallelLinears:
        """Linears of one input, merged if weights are copied anyway."""
        merge = self.device.type != "cpu" or self.pack is not None
        return parallel_linears(linears, merge=merge, pack=self.pack)

    def head(self, outputs: int) -> AnyLinear:
        """The checkpoint's head, without a bias."""
        return self.finished(self.linear("lm_head", outputs, self.config.hidden_size, bias=False))

    def layer(
        self, prefix: str, layer: LayerConfig, *, num_inputs: int = 0, may_lack_norm: bool = False
    ) -> DecoderLayer:
        """The layer whose tensors begin with `prefix`. Its mixer reads `num_inputs` numbers, or hidden_size if 0.

        With `may_lack_norm` it may have no norm of its input.
        """
        hidden, norm = self.config.hidden_size, f"{prefix}.input_layernorm.weight"
        return DecoderLayer(
            input_norm_E=None if may_lack_norm and norm not in self.checkpoint else self.tensor(norm, hidden),
            mixer=self._attention(f"{prefix}.self_attn", layer.mixer, num_inputs or hidden),
            feed_norm_E=self.tensor(f"{prefix}.post_attention_layernorm.weight", hidden),
            feed=self._feed(f"{prefix}.mlp", layer.feed),
        )

    def _attention(self, prefix: str, mixer: AttentionConfig, num_inputs: int) -> Attention:
        q_size, kv_size = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
        qkv = [
            self.linear(f"{prefix}.{name}_proj", size, num_inputs, bias=mixer.qkv_bias)
            for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size))
        ]
        output = self.linear(f"{prefix}.o_proj", self.config.hidden_size, q_size, bias=mixer.output_bias)
        return Attention(
            self.joined(qkv), self._qk_norm(prefix, mixer) if mixer.qk_norm else None, self.finished(output)
        )

    def _qk_norm(self, prefix: str, mixer: AttentionConfig) -> Tensor:
        q_D, k_D = (self.tensor(f"{prefix}.{name}_norm.weight", mixer.head_dim) for name in ("q", "k"))
        return torch.cat((q_D.expand(mixer.num_heads, -1), k_D.expand(mixer.num_kv_heads, -1)))

    def _feed(self, prefix: str, feed: MlpConfig) -> Feed:
        """The feed, or this rank's share of it. A share has no bias of its outputs."""
        ranks = self.collectives
        if ranks is None:
            return self._mlp(prefix, feed, bias=feed.bias)
        share = self._mlp(prefix, feed, bias=False)
        name = f"{prefix}.down_proj.bias"
        return Sharded(share, self.tensor(name, self.config.hidden_size) if feed.bias else None, ranks)

    def _mlp(self, prefix: str, mlp: MlpConfig, *, bias: bool) -> Mlp:
        """`bias`: of its outputs."""
        hidden = self.config.hidden_size
        gate, up = (
            self.linear(f"{prefix}.{name}_proj", mlp.width, hidden, bias=mlp.bias, cut=Cut.OUTPUTS)
            for name in ("gate", "up")
        )
        down = self.linear(f"{prefix}.down_proj", hidden, mlp.width, bias=bias, cut=Cut.INPUTS)
        return Mlp(self.joined((gate, up)), self.finished(down))
