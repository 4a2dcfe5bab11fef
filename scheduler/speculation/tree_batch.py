"""The inputs of a launch that proposes trees, beside those of the chain that the kept path is.

Of a row with m committed tokens, node i of W lies in slot m + i, at position m + its depth. Before, the draft proposes
level by level: the KV of token b of level t lies in slot m + (t - 1) * K + b, at position m + t - 1. A path's slots
ascend, and a mask says which ones a node sees. Slots from the row's limit on are in page 0; no node there is kept.
Shapes: B rows that decode, K proposals after a token, W nodes, X slots of a row, T tokens of the target's forward.
"""

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from model.inputs import ModelInput
from scheduler.execution.batches import ForwardBatch, ScheduleBatch, extend_input, joined, sampling_of
from scheduler.execution.page_table import PageTable
from scheduler.execution.spans import Spans
from scheduler.plan import Plan


@dataclass(frozen=True)
class TreeBatch:
    """What a launch reads to propose trees, and to bring the kept paths to consecutive slots."""

    topk: int
    num_steps: int  # levels
    num_nodes: int
    seq_lens_B: Tensor  # committed before the launch
    limits_B: Tensor
    slots_BX: Tensor  # from the committed length on
    levels: tuple[ModelInput, ...]  # K slots of each row for each level but the last; ids and bits are still to come
    path: ModelInput  # chunks, then the slots of the kept path; its ids are still to come

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        own = (self.seq_lens_B, self.limits_B, self.slots_BX)
        return (*own, *[tensor for inp in (*self.levels, self.path) for tensor in inp.tensors.values()])

    @staticmethod
    def init_new(
        plan: Plan, running: ScheduleBatch, table: PageTable, page_size: int, path: ModelInput
    ) -> "tuple[ForwardBatch, TreeBatch]":
        """The inputs of a launch of at least one row. `path` is that of its chain. Ids, positions and bits of the nodes
        are still to come."""
        topk, num_nodes, chunks = plan.topk, plan.num_nodes, plan.chunks
        room = max(num_nodes, (plan.num_steps - 1) * topk + 1)
        spans = Spans.of(running, table, page_size, running.seq_lens_cpu, room)
        nodes = _masked(spans.input(slice(num_nodes)), running, num_nodes)
        seq_lens = np.repeat(running.seq_lens_cpu + 1, num_nodes)  # the smallest: device positions decide
        batch = ForwardBatch(
            input=joined(extend_input(chunks, table, page_size, nodes.seq_lens_B.device), nodes) if chunks else nodes,
            sampling=sampling_of(chunks, running.repeated(num_nodes), nodes.seq_lens_B, seq_lens),
            decode_owners_D=running.members.owners_B,
        )
        levels = []
        for level in range(plan.num_steps - 1):
            inp = _masked(spans.input(slice(level * topk, (level + 1) * topk)), running, topk)
            levels.append(replace(inp, positions_T=spans.positions_BX[:, level].repeat_interleave(topk)))
        tree = TreeBatch(
            topk=topk,
            num_steps=plan.num_steps,
            num_nodes=num_nodes,
            seq_lens_B=running.seq_lens_B,
            limits_B=running.members.limits_B,
            slots_BX=spans.slots_BX,
            levels=tuple(levels),
            path=path,
        )
        return batch, tree


def _masked(inp: ModelInput, running: ScheduleBatch, width: int) -> ModelInput:
    """With a mask behind the committed tokens. Its bits are still to come."""
    starts_D = running.seq_lens_B.repeat_interleave(width)
    return replace(inp, tree_starts_D=starts_D, tree_bits_D=starts_D)
