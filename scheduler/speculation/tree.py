"""Trees: a draft of one layer proposes several tokens after a token, level by level.

Of a row with m committed tokens, node i of W lies in slot m + i, at position m + its depth. Before, the draft proposes
level by level: the KV of token b of level t lies in slot m + (t - 1) * K + b, at position m + t - 1. A path's slots
ascend, and a mask says which ones a node sees. Slots from the row's limit on are in page 0; no node there is kept.

    propose   the draft proposes level by level, and the best tree is chosen (draft_tree.py)
    verify    the target computes all nodes, and the path that it has drawn is kept
    extend    the target's KV of the path moves to consecutive slots, where the draft reads it as a chain

Shapes: B rows that decode, K proposals after a token, W nodes, S levels, X slots of a row, T tokens of the target's
forward, E hidden.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.sampling_input import SamplingInput
from scheduler.draft_shape import DraftShape
from scheduler.execution.batches import ForwardBatch, ScheduleBatch, extend_input, joined, sampling_of
from scheduler.execution.future_map import DraftExtras
from scheduler.execution.spans import Spans
from scheduler.plan import Plan
from scheduler.speculation.draft_rows import Beginning, DraftRows, behind_chunks
from scheduler.speculation.draft_tree import Nodes, best_tree, empty_tree, first_level, next_level, walk
from scheduler.speculation.mode import DraftParts, Kept, OnLayer, keep, run_target
from scheduler.speculation.one_layer import TreeLayer


@dataclass(frozen=True)
class TreeBatch:
    """The inputs of one launch. The kept path is then a chain of S + 1 tokens: the width of `rows`."""

    rows: DraftRows
    slots_BX: Tensor  # from the committed length on
    levels: tuple[ModelInput, ...]  # K slots of each row for each level but the last; ids and bits are still to come
    path: ModelInput  # chunks, then the slots of the kept path; its ids are still to come

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        inputs = [tensor for inp in (*self.levels, self.path) for tensor in inp.tensors.values()]
        return (*self.rows.tensors, self.slots_BX, *inputs)


@dataclass(frozen=True)
class KeptPath(Kept):
    """A path of a tree. `drawn_BW` and `hidden_TE` are those along it."""

    path_BS: Tensor  # its nodes from the root on; the last one is repeated


class Tree:
    """See mode.py for what its methods do."""

    def __init__(self, parts: DraftParts, layer: TreeLayer, shape: DraftShape) -> None:
        self._parts = parts
        self._layer = layer
        self._shape = shape

    def num_verified(self, plan: Plan) -> int:
        """See DraftMode."""
        return self._shape.num_nodes

    def build(self, plan: Plan, running: ScheduleBatch, begins: Sequence[int]) -> tuple[ForwardBatch, TreeBatch]:
        """See DraftMode. Ids, positions and bits of the nodes are still to come."""
        device, topk, num_nodes = self._parts.device, self._shape.topk, self._shape.num_nodes
        table, page_size = device.page_table, device.kv.layout.page_size
        chain = Spans.of(running, table, page_size, running.seq_lens_cpu, plan.num_steps + 1)
        spans = Spans.of(running, table, page_size, running.seq_lens_cpu, self._shape.width)

        nodes = _masked(spans.input(slice(num_nodes)), running, num_nodes)
        seq_lens = np.repeat(running.seq_lens_cpu + 1, num_nodes)  # the smallest: device positions decide
        prompts = extend_input(plan.chunks, table, page_size, nodes.seq_lens_B.device) if plan.chunks else None
        forward = ForwardBatch(
            input=nodes if prompts is None else joined(prompts, nodes),
            sampling=sampling_of(plan.chunks, running.repeated(num_nodes), nodes.seq_lens_B, seq_lens),
            decode_owners_D=running.members.owners_B,
        )

        levels = []
        for level in range(plan.num_steps - 1):
            inp = _masked(spans.input(slice(level * topk, (level + 1) * topk)), running, topk)
            levels.append(replace(inp, positions_T=spans.positions_BX[:, level].repeat_interleave(topk)))
        return forward, TreeBatch(
            rows=DraftRows.of(plan, running, Beginning.of(begins, running, table, page_size)),
            slots_BX=spans.slots_BX,
            levels=tuple(levels),
            path=behind_chunks(plan, running, chain, table, page_size),
        )

    def propose(self, batch: TreeBatch) -> Nodes:
        """The tree behind the last known tokens, which are its roots."""
        root_B = self._layer.last_known(batch.rows)
        first = self._layer.first_proposals(batch.rows, root_B)
        if first is None or first.topk_index_NK is None or first.topk_p_NK is None or first.hidden_NE is None:
            return empty_tree(root_B, self._shape.num_nodes)

        candidates, beam = first_level(first.topk_index_NK, first.topk_p_NK)
        num_rows, topk = beam.tokens_BK.shape
        hidden_NE = first.hidden_NE.repeat_interleave(topk, 0)
        for level, inp in enumerate(batch.levels, 2):
            inp = replace(inp, input_ids_T=beam.tokens_BK.clamp(min=0).flatten(), tree_bits_D=beam.bits_BK.flatten())
            after = self._layer.read(inp, hidden_NE)
            assert after.topk_index_NK is not None and after.topk_p_NK is not None and after.hidden_NE is not None
            shape = num_rows, topk, topk
            candidates, beam = next_level(
                candidates, beam, after.topk_index_NK.view(shape), after.topk_p_NK.view(shape), level
            )
            from_BKE = beam.from_BK[:, :, None].expand(-1, -1, hidden_NE.shape[1])
            hidden_NE = after.hidden_NE.view(num_rows, topk, -1).gather(1, from_BKE).flatten(0, 1)
        return best_tree(root_B, candidates, topk, batch.rows.width - 1, self._shape.num_nodes)

    def verify(self, forward: ForwardBatch, batch: TreeBatch, proposed: Nodes, on_layer: OnLayer) -> KeptPath:
        """See DraftMode."""
        rows, num_nodes = batch.rows, self._shape.num_nodes
        forward = with_nodes(forward, rows, proposed)
        drawn = run_target(self._parts, forward, rows, proposed.tokens_BW.clamp(min=0), on_layer)
        firsts_D, drawn_BW = drawn.tokens_L[: rows.num_draws], drawn.tokens_L[rows.num_draws :].view(-1, num_nodes)
        path_BS, kept_B = walk(proposed, drawn_BW, rows.limits_B - rows.seq_lens_B, rows.width - 1)
        drawn = replace(
            drawn,
            hidden_TE=along(path_BS, drawn.hidden_TE, num_nodes),
            logprobs_NW=logprobs_along(path_BS, drawn.logprobs_NW, forward.sampling, rows.num_draws, num_nodes),
        )
        kept = keep(rows, drawn, firsts_D, drawn_BW.gather(1, path_BS), kept_B)
        return KeptPath(**vars(kept), path_BS=path_BS)

    def extend(
        self, forward: ForwardBatch, batch: TreeBatch, verified: KeptPath, on_layer: OnLayer
    ) -> tuple[Tensor, DraftExtras]:
        """See DraftMode."""
        compact(self._parts.device.kv, batch.slots_BX, verified.path_BS, verified.kept_B)
        return self._layer.extend(forward, batch.path, batch.rows, verified, on_layer)


def with_nodes(forward: ForwardBatch, rows: DraftRows, tree: Nodes) -> ForwardBatch:
    """The target's inputs, with the nodes' positions and masks. Each draws with the noise of its own position."""
    inp, sampling = forward.input, forward.sampling
    positions_BW = rows.seq_lens_B[:, None] + tree.depths_BW
    within_BW = torch.minimum(positions_BW, rows.limits_B[:, None] - 1)  # a node behind the limit is never kept
    num_prompts = inp.positions_T.shape[0] - positions_BW.numel()
    inp = replace(
        inp,
        positions_T=torch.cat((inp.positions_T[:num_prompts], within_BW.flatten())),
        tree_bits_D=tree.bits_BW.flatten(),
    )
    position_L = torch.cat((sampling.position_L[: rows.num_draws], positions_BW.flatten() + 1))
    return replace(forward, input=inp, sampling=replace(sampling, position_L=position_L))


def along(path_BS: Tensor, hidden_TE: Tensor, num_nodes: int) -> Tensor:
    """The hidden states of chunks, then those of the nodes on each path."""
    num_rows, hidden_size = path_BS.shape[0], hidden_TE.shape[1]
    prompts_TE, nodes_TE = hidden_TE.split((hidden_TE.shape[0] - num_rows * num_nodes, num_rows * num_nodes))
    nodes_BWE = nodes_TE.view(num_rows, num_nodes, hidden_size)
    path_BSE = nodes_BWE.gather(1, path_BS[:, :, None].expand(-1, -1, hidden_size))
    return torch.cat((prompts_TE, path_BSE.flatten(0, 1)))


def logprobs_along(
    path_BS: Tensor, words_NW: Tensor | None, sampling: SamplingInput, num_draws: int, num_nodes: int
) -> Tensor | None:
    """The log-probabilities behind first tokens, then those behind the nodes on the paths of rows that ask."""
    if words_NW is None or (asked := sampling.logprobs) is None:
        return None
    num_firsts, num_words = bisect_left(asked.rows, num_draws), words_NW.shape[1]
    asking_A = (asked.rows_N[num_firsts::num_nodes] - num_draws) // num_nodes
    path_AS = path_BS.index_select(0, asking_A)
    nodes_ANW = words_NW[num_firsts:].view(-1, num_nodes, num_words)
    path_ASW = nodes_ANW.gather(1, path_AS[:, :, None].expand(-1, -1, num_words))
    return torch.cat((words_NW[:num_firsts], path_ASW.flatten(0, 1)))


def compact(kv: PagedKv, slots_BX: Tensor, path_BS: Tensor, kept_B: Tensor) -> None:
    """Moves the target's KV of the kept nodes behind the root to the slots behind the root's."""
    num_steps = path_BS.shape[1] - 1
    is_kept_BS = torch.arange(1, num_steps + 1, device=kept_B.device) <= kept_B[:, None]
    from_BS, to_BS = slots_BX.gather(1, path_BS[:, 1:]), slots_BX[:, 1 : num_steps + 1]
    kv.move_tokens(0, *(torch.where(is_kept_BS, slots_BS, 0).flatten() for slots_BS in (from_BS, to_BS)))


def _masked(inp: ModelInput, running: ScheduleBatch, width: int) -> ModelInput:
    """With a mask behind the committed tokens. Its bits are still to come."""
    starts_D = running.seq_lens_B.repeat_interleave(width)
    return replace(inp, tree_starts_D=starts_D, tree_bits_D=starts_D)
