"""Makes the parts of layers from a checkpoint's tensors. Each linear says how the ranks of a group cut it.

    Cut.WHOLE     every rank has all of it
    Cut.OUTPUTS   a rank has some rows of the weight, and their biases: gate, up
    Cut.INPUTS    a rank has some columns of the weight: down, whose bias is added once, to the sum of all ranks

Shapes: N = H + K heads, D head_dim, E hidden, I inputs, O outputs.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor, device, dtype

from model.checkpoint import Checkpoint, Part, Taken
from model.collectives import Collectives
from model.cpu_experts import CpuExperts
from model.cpu_kernels import CpuKernels
from model.experts import Experts, Router, is_grouped
from model.host_memory import return_free_memory
from model.layer import Attention, DecoderLayer
from model.linear import AnyLinear, Linear, Pack, ParallelLinears, Unpacked, parallel_linears, unpacked
from model.mlp import Feed, Mlp, Sharded, gating_of
from model.passes import rotation_order
from model.quantised import GROUP, from_mxfp4
from model.rows import ReadRows, Rows, ordered
from model.scoring import Scoring
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
        return self.checkpoint.take(name, shape, as_dtype or self.dtype, self.device, self._part(shape, cut))

    def _part(self, shape: tuple[int, ...], cut: Cut) -> Part | None:
        """This rank's share of a tensor; None: all of it."""
        return None if self.collectives is None or cut is Cut.WHOLE else Part(cut, *self._share(shape[cut]))

    def _share(self, size: int) -> tuple[int, int]:
        """Where this rank's share of so many numbers begins, and how many it has."""
        ranks = self.collectives
        own = size if ranks is None else size // ranks.size
        return (0 if ranks is None else ranks.rank * own), own

    def norm(self, name: str, size: int) -> Tensor:
        """The weight of a norm. With an offset it is float32, because the sum has more bits than the weight."""
        if not self.config.norm_offset:
            return self.tensor(name, size)
        norm_E = self.tensor(name, size, as_dtype=torch.float32) + self.config.norm_offset
        self._note_copies((name,))
        return norm_E

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool, cut: Cut = Cut.WHOLE) -> Linear:
        """The linear of `name`.weight and, with `bias`, `name`.bias; or this rank's share of it."""
        weight_OI = self.tensor(f"{name}.weight", outputs, inputs, cut=cut)
        return Linear(weight_OI, self.tensor(f"{name}.bias", outputs, cut=cut) if bias else None)

    def unpacked(self, name: str, outputs: int, inputs: int, *, bias: bool, cut: Cut = Cut.WHOLE) -> Unpacked:
        """The same. If it will be packed, its rows are read only then."""
        if not self._copies or self.device.type != "cpu":
            return self.linear(name, outputs, inputs, bias=bias, cut=cut)
        part = self._part((outputs, inputs), cut)
        rows_OI = self.checkpoint.rows(f"{name}.weight", (outputs, inputs), self.dtype, part)
        return Unpacked(rows_OI, self.tensor(f"{name}.bias", outputs, cut=cut) if bias else None)

    @property
    def _copies(self) -> bool:
        """Whether weights are packed into this worker's own memory."""
        return self.pack is not None and self.pack.copies

    def finished(self, linear: Unpacked) -> AnyLinear:
        """`linear`, packed if that is wanted."""
        return self.pack.make(linear) if self.pack else unpacked(linear)

    def joined(self, linears: Sequence[Unpacked]) -> ParallelLinears:
        """Linears of one input, merged if weights are copied anyway."""
        return parallel_linears(linears, merge=self.device.type != "cpu" or self._copies, pack=self.pack)

    def head(self, outputs: int, name: str = "lm_head") -> AnyLinear:
        """The checkpoint's head, without a bias."""
        return self.finished(self.unpacked(name, outputs, self.config.hidden_size, bias=False))

    def layer(
        self, prefix: str, layer: LayerConfig, *, num_inputs: int = 0, may_lack_norm: bool = False
    ) -> DecoderLayer:
        """The layer whose tensors begin with `prefix`. Its mixer reads `num_inputs` numbers, or hidden_size if 0.

        With `may_lack_norm` it may have no norm of its input.
        """
        hidden, norm = self.config.hidden_size, f"{prefix}.input_layernorm.weight"

        def norm_of(name: str) -> Tensor:
            return self.norm(f"{prefix}.{name}_layernorm.weight", hidden)

        outer = layer.has_outer_norms
        made = DecoderLayer(
            input_norm_E=None if may_lack_norm and norm not in self.checkpoint else self.norm(norm, hidden),
            mixer=self._attention(f"{prefix}.self_attn", layer.mixer, num_inputs or hidden),
            feed_norm_E=norm_of("pre_feedforward" if outer else "post_attention"),
            feed=self._feed(prefix, layer.feed),
            mixed_norm_E=norm_of("post_attention") if outer else None,
            fed_norm_E=norm_of("post_feedforward") if outer else None,
        )
        if self._copies:
            return_free_memory()  # of copies between the file and the packed weights
        return made

    def _attention(self, prefix: str, mixer: AttentionConfig, num_inputs: int) -> Attention:
        sizes = {"q": mixer.num_heads * mixer.head_dim, "k": mixer.num_kv_heads * mixer.head_dim}
        q, k, v = (
            self.unpacked(f"{prefix}.{name}_proj", size, num_inputs, bias=mixer.qkv_bias)
            for name, size in (*sizes.items(), ("v", sizes["k"]))
        )
        output = self.unpacked(f"{prefix}.o_proj", self.config.hidden_size, sizes["q"], bias=mixer.output_bias)

        order = rotation_order(self.config.rope, mixer.head_dim)
        if order is not None:
            q, k = (_ordered_outputs(linear, order) for linear in (q, k))
            self._note_copies(f"{prefix}.{name}_proj.{kind}" for name in sizes for kind in ("weight", "bias"))
        joined, finished = self.joined((q, k, v)), self.finished(output)
        self._forget(f"{prefix}.{name}_proj.weight" for name in (*sizes, "v", "o"))
        window = mixer.window if mixer.window < self.config.context_length else 0
        sinks_H = self.tensor(f"{prefix}.sinks", mixer.num_heads, as_dtype=torch.float32) if mixer.has_sinks else None
        attention = Attention(joined, finished, scoring=Scoring(window, mixer.scale, sinks_H), rope=mixer.rope)
        if mixer.qk_norm == "none":
            return attention

        size_of = sizes if mixer.qk_norm == "all" else dict.fromkeys(sizes, mixer.head_dim)
        norms = [self.norm(f"{prefix}.{name}_norm.weight", size) for name, size in size_of.items()]
        if order is not None:
            norms = [_ordered(norm, order) for norm in norms]
            self._note_copies(f"{prefix}.{name}_norm.weight" for name in sizes)
        q_norm, k_norm = norms
        if mixer.qk_norm == "all" or q_norm.dtype != self.dtype:
            return replace(attention, norms_before=(q_norm, k_norm))
        both = q_norm.expand(mixer.num_heads, -1), k_norm.expand(mixer.num_kv_heads, -1)
        return replace(attention, qk_norm_ND=torch.cat(both))

    def _forget(self, weights: Iterable[str]) -> None:
        """Gives back what was read of weights that are packed now, so that a worker never has two copies of many."""
        if self._copies:
            for name in weights:
                self.checkpoint.forget(name)

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
            self.unpacked(f"{prefix}.{name}", mlp.width, hidden, bias=mlp.bias, cut=Cut.OUTPUTS)
            for name in (names.gate, names.up)
        )
        down = self.unpacked(f"{prefix}.{names.down}", hidden, mlp.width, bias=bias, cut=Cut.INPUTS)
        made = Mlp(self.joined((gate, up)), self.finished(down), gating_of(mlp))
        self._forget(f"{prefix}.{name}.weight" for name in (names.gate, names.up, names.down))
        return made

    def _experts(self, prefix: str, feed: ExpertsConfig) -> Experts | CpuExperts:
        """Every rank has the whole router, and a share of each expert."""
        names, float32 = feed.names, torch.float32
        bias, router_name = f"{prefix}.{names.choice_bias}", f"{prefix}.{names.router}"
        weight_XE = self.tensor(f"{router_name}.weight", feed.count, self.config.hidden_size, as_dtype=float32)
        has_bias = feed.router.has_bias
        router = Router(
            feed.router,
            weight_XE.double(),
            self.tensor(bias, feed.count, as_dtype=float32) if feed.router.has_choice_bias else None,
            self.tensor(f"{router_name}.bias", feed.count, as_dtype=float32).double() if has_bias else None,
        )
        experts = (
            self._stacked(f"{prefix}.experts", feed)
            if names.is_stacked
            else tuple(self._mlp(f"{prefix}.experts.{index}", feed.expert, names) for index in range(feed.count))
        )
        shared = self._mlp(f"{prefix}.shared_experts", feed.shared) if feed.shared else None
        mixture = Experts(router, experts, shared)
        if is_grouped(feed, self.device):
            from model.experts_triton import TritonExperts  # noqa: PLC0415 - an optional package, for GPUs

            return TritonExperts.of(mixture)
        in_c = CpuExperts.of(self.kernels, mixture) if self.kernels else None
        return in_c or mixture

    def _stacked(self, prefix: str, feed: ExpertsConfig) -> tuple[Mlp, ...]:
        """Experts of which one tensor has all. The outputs of gate and up alternate. Of all ranks only the first adds
        the bias of down."""
        hidden, width, names = self.config.hidden_size, feed.expert.width, feed.names
        start, own = self._share(width)
        gate_up = self._stack(f"{prefix}.{names.gate}", feed.count, 2 * width, hidden, 2 * own * hidden)
        down = self._stack(f"{prefix}.{names.down}", feed.count, hidden, width, hidden * own)
        biases_X2I = self.tensor(f"{prefix}.{names.gate}_bias", feed.count, 2 * width)
        biases_XE = self.tensor(f"{prefix}.{names.down}_bias", feed.count, hidden)
        has_bias = self.collectives is None or self.collectives.rank == 0

        def mlp(index: int) -> Mlp:
            halves = (slice(2 * start + first, 2 * (start + own), 2) for first in (0, 1))
            gate, up = (
                Unpacked(gate_up(index, half, slice(None)), biases_X2I[index, half].contiguous()) for half in halves
            )
            bias_E = biases_XE[index].contiguous() if has_bias else None
            own_down = Unpacked(down(index, slice(None), slice(start, start + own)), bias_E)
            return Mlp(self.joined((gate, up)), self.finished(own_down), gating_of(feed.expert))

        made = tuple(mlp(index) for index in range(feed.count))
        self._forget(name for name in self.checkpoint.taken if name.startswith(f"{prefix}."))
        return made

    def _stack(self, name: str, count: int, outputs: int, inputs: int, own: int) -> Callable[[int, slice, slice], Rows]:
        """Gives some outputs and inputs of an expert's weight, of which this rank has `own` numbers: held as MXFP4, or
        with inputs before outputs. They are read when the expert is asked for, or if it will be packed, row by row."""
        checkpoint, quantised = self.checkpoint, self.config.quantised
        if quantised is None or quantised.method != "mxfp4":
            weight_XIO = checkpoint.mapped(name, (count, inputs, outputs))
            checkpoint.taken[name] = Taken(count * own, self.dtype, is_view=False)
            return lambda index, some, columns: self._moved(name, weight_XIO[index].T[some, columns])

        groups, names = inputs // GROUP, (f"{name}_blocks", f"{name}_scales")
        blocks_XOGB = checkpoint.mapped(names[0], (count, outputs, groups, GROUP // 2), ("U8",))
        scales_XOG = checkpoint.mapped(names[1], (count, outputs, groups), ("U8",))
        checkpoint.taken[names[0]] = Taken(count * own, self.dtype, is_view=False)
        checkpoint.taken[names[1]] = Taken(0, self.dtype, is_view=False)

        def expert(index: int, some: slice, columns: slice) -> Rows:
            blocks_OGB, scales_OG = blocks_XOGB[index, some], scales_XOG[index, some]
            shape = blocks_OGB.shape[0], len(range(inputs)[columns])
            if self.device.type == "meta":
                return torch.empty(shape, device="meta")
            return self._moved(
                names[0],
                ReadRows(shape, lambda a, b: from_mxfp4(blocks_OGB[a:b], scales_OG[a:b], self.dtype)[:, columns]),
            )

        return expert

    def _moved(self, name: str, rows_OI: Rows) -> Rows:
        """Rows of the tensor `name` in the dtype that is served: read now by one copy, unless they will be packed."""
        is_meta = self.device.type == "meta"
        if self._copies and not is_meta:
            served = ReadRows(rows_OI.shape, lambda start, end: rows_OI[start:end].to(self.dtype))
            self.checkpoint.check(name, served)
            return served
        read_OI, together = rows_OI[0 : rows_OI.shape[0]], torch.contiguous_format
        moved_OI = read_OI.to(device=self.device, dtype=self.dtype, memory_format=together).contiguous()
        if not is_meta:
            self.checkpoint.check(name, moved_OI)
        return moved_OI


def _ordered_outputs(linear: Unpacked, order: Sequence[int]) -> Unpacked:
    """A linear whose outputs are heads, with the dimensions of each head in this order."""
    bias_O = None if linear.bias_O is None else _ordered(linear.bias_O, order)
    if isinstance(linear.weight_OI, Tensor):
        return Linear(_ordered(linear.weight_OI, order), bias_O)
    return Unpacked(ordered(linear.weight_OI, order), bias_O)


def _ordered(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """A tensor of heads, one behind the other in dimension 0, with the dimensions of each head in this order."""
    by_head = tensor.reshape(-1, len(order), *tensor.shape[1:])
    return by_head.index_select(1, torch.tensor(order, device=tensor.device)).reshape(tensor.shape)
