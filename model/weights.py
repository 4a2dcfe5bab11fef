"""Makes the parts of layers from a checkpoint's tensors. Each linear says how the ranks of a group cut it.

    Cut.WHOLE     every rank has all of it
    Cut.OUTPUTS   a rank has some rows of the weight, and their biases: gate, up
    Cut.INPUTS    a rank has some columns of the weight: down, whose bias is added once, to the sum of all ranks

Shapes: N = H + K heads, D head_dim, E hidden, I inputs, O outputs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor, device, dtype

from model.checkpoint import Checkpoint, Part
from model.collectives import Collectives
from model.cpu_experts import CpuExperts
from model.cpu_kernels import CpuKernels
from model.experts import Experts, Router
from model.host_memory import return_free_memory
from model.layer import Attention, DecoderLayer
from model.linear import AnyLinear, Linear, Pack, ParallelLinears, parallel_linears
from model.mlp import Feed, Mlp, Sharded
from model.passes import rotation_order
from runtime.model_config import ModelConfig
from runtime.model_parts import (
    DEFAULT_NAMES,
    AttentionConfig,
    ExpertNames,
    ExpertsConfig,
    FeedConfig,
    LayerConfig,
    MlpConfig,
)


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
    kernels: CpuKernels | None = None  # in which experts are computed, if C has products with their weights

    def tensor(self, name: str, *shape: int, cut: Cut = Cut.WHOLE, as_dtype: torch.dtype | None = None) -> Tensor:
        """The tensor `name`, or this rank's share of it. `shape` is that of the whole tensor.

        `as_dtype`: of a tensor that stays in this dtype whatever the model computes in.
        """
        ranks, part = self.collectives, None
        if ranks is not None and cut is not Cut.WHOLE:
            size = shape[cut] // ranks.size
            part = Part(cut, ranks.rank * size, size)
        return self.checkpoint.take(name, shape, as_dtype or self.dtype, self.device, part)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool, cut: Cut = Cut.WHOLE) -> Linear:
        """The linear of `name`.weight and, with `bias`, `name`.bias; or this rank's share of it."""
        weight_OI = self.tensor(f"{name}.weight", outputs, inputs, cut=cut)
        return Linear(weight_OI, self.tensor(f"{name}.bias", outputs, cut=cut) if bias else None)

    def finished(self, linear: Linear) -> AnyLinear:
        """`linear`, packed if that is wanted."""
        return self.pack.make(linear) if self.pack else linear

    def joined(self, linears: Sequence[Linear]) -> ParallelLinears:
        """Linears of one input, merged if weights are copied anyway."""
        merge = self.device.type != "cpu" or (self.pack is not None and self.pack.copies)
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
        made = DecoderLayer(
            input_norm_E=None if may_lack_norm and norm not in self.checkpoint else self.tensor(norm, hidden),
            mixer=self._attention(f"{prefix}.self_attn", layer.mixer, num_inputs or hidden),
            feed_norm_E=self.tensor(f"{prefix}.post_attention_layernorm.weight", hidden),
            feed=self._feed(prefix, layer.feed),
        )
        if self.pack is not None and self.pack.copies:
            return_free_memory()  # of copies between the file and the packed weights
        return made

    def _attention(self, prefix: str, mixer: AttentionConfig, num_inputs: int) -> Attention:
        sizes = {"q": mixer.num_heads * mixer.head_dim, "k": mixer.num_kv_heads * mixer.head_dim}
        q, k, v = (
            self.linear(f"{prefix}.{name}_proj", size, num_inputs, bias=mixer.qkv_bias)
            for name, size in (*sizes.items(), ("v", sizes["k"]))
        )
        output = self.linear(f"{prefix}.o_proj", self.config.hidden_size, sizes["q"], bias=mixer.output_bias)

        order = rotation_order(self.config.rope, mixer.head_dim)
        if order is not None:
            q, k = (_ordered_outputs(linear, order) for linear in (q, k))
            self._note_copies(f"{prefix}.{name}_proj.{kind}" for name in sizes for kind in ("weight", "bias"))
        joined, finished = self.joined((q, k, v)), self.finished(output)
        self._forget(f"{prefix}.{name}_proj" for name in (*sizes, "v", "o"))
        if mixer.qk_norm == "none":
            return Attention(joined, finished)

        size_of = sizes if mixer.qk_norm == "all" else dict.fromkeys(sizes, mixer.head_dim)
        norms = [self.tensor(f"{prefix}.{name}_norm.weight", size) for name, size in size_of.items()]
        if order is not None:
            norms = [_ordered(norm, order) for norm in norms]
            self._note_copies(f"{prefix}.{name}_norm.weight" for name in sizes)
        q_norm, k_norm = norms
        if mixer.qk_norm == "all":
            return Attention(joined, finished, norms_of_all=(q_norm, k_norm))
        both = q_norm.expand(mixer.num_heads, -1), k_norm.expand(mixer.num_kv_heads, -1)
        return Attention(joined, finished, torch.cat(both))

    def _forget(self, linears: Iterable[str]) -> None:
        """Gives back what was read of weights that are packed now, so that a worker never has two copies of many."""
        if self.pack is not None and self.pack.copies:
            for name in linears:
                self.checkpoint.forget(f"{name}.weight")

    def _note_copies(self, names: Iterable[str]) -> None:
        """These tensors are no views over the file."""
        taken = self.checkpoint.taken
        taken |= {name: taken[name]._replace(is_view=False) for name in names if name in taken}

    def _feed(self, layer: str, feed: FeedConfig) -> Feed:
        """The feed, or this rank's share of it. A share has no bias of its outputs."""
        ranks = self.collectives
        match feed:
            case ExpertsConfig():
                experts = self._experts(f"{layer}.{feed.names.block}", feed)
                return experts if ranks is None else Sharded(experts, None, ranks)
            case MlpConfig():
                mlp = self._mlp(f"{layer}.mlp", feed, bias=feed.bias and ranks is None)
                if ranks is None:
                    return mlp
                name = f"{layer}.mlp.down_proj.bias"
                return Sharded(mlp, self.tensor(name, self.config.hidden_size) if feed.bias else None, ranks)

    def _mlp(self, prefix: str, mlp: MlpConfig, names: ExpertNames = DEFAULT_NAMES, *, bias: bool = False) -> Mlp:
        """`bias`: of its outputs."""
        hidden = self.config.hidden_size
        gate, up = (
            self.linear(f"{prefix}.{name}", mlp.width, hidden, bias=mlp.bias, cut=Cut.OUTPUTS)
            for name in (names.gate, names.up)
        )
        down = self.linear(f"{prefix}.{names.down}", hidden, mlp.width, bias=bias, cut=Cut.INPUTS)
        made = Mlp(self.joined((gate, up)), self.finished(down))
        self._forget(f"{prefix}.{name}" for name in (names.gate, names.up, names.down))
        return made

    def _experts(self, prefix: str, feed: ExpertsConfig) -> Experts | CpuExperts:
        """Every rank has the whole router, and a share of each expert."""
        names, float32 = feed.names, torch.float32
        bias = f"{prefix}.{names.choice_bias}"
        router = Router(
            feed.router,
            self.tensor(f"{prefix}.gate.weight", feed.count, self.config.hidden_size, as_dtype=float32).double(),
            self.tensor(bias, feed.count, as_dtype=float32) if feed.router.has_choice_bias else None,
        )
        mixture = Experts(
            router,
            tuple(self._mlp(f"{prefix}.experts.{index}", feed.expert, names) for index in range(feed.count)),
            self._mlp(f"{prefix}.shared_experts", feed.shared) if feed.shared else None,
        )
        in_c = CpuExperts.of(self.kernels, mixture) if self.kernels else None
        return in_c or mixture


def _ordered_outputs(linear: Linear, order: Sequence[int]) -> Linear:
    """A linear whose outputs are heads, with the dimensions of each head in this order."""
    bias_O = None if linear.bias_O is None else _ordered(linear.bias_O, order)
    return Linear(_ordered(linear.weight_OI, order), bias_O)


def _ordered(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """A tensor of heads, one behind the other in dimension 0, with the dimensions of each head in this order."""
    by_head = tensor.reshape(-1, len(order), *tensor.shape[1:])
    return by_head.index_select(1, torch.tensor(order, device=tensor.device)).reshape(tensor.shape)
