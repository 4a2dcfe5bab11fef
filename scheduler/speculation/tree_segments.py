"""What a launch computes for trees, on the forward stream; draft_segments.py computes the rest.

    propose   the draft proposes level by level, and the best tree is chosen
    verify    the target computes all nodes, and the path that it has drawn is kept
    extend    the target's KV of the path moves to consecutive slots, where the draft reads it as a chain

Shapes: B rows, K proposals after a token, W nodes, S levels, T tokens of the target's forward, E hidden.
"""

from dataclasses import replace

import torch
from torch import Tensor

from model.draft import Draft, first_layer
from model.paged_kv import PagedKv
from scheduler.execution.batches import ForwardBatch
from scheduler.speculation.draft_tree import Tree, best_tokens, best_tree, first_level, next_level
from scheduler.speculation.tree_batch import TreeBatch


def propose_tree(
    draft: Draft, kv: PagedKv, own: TreeBatch, root_B: Tensor, tokens_BK: Tensor, log_p_BK: Tensor, hidden_BE: Tensor
) -> Tree:
    """The tree behind the last known tokens `root_B`. The first level's tokens are known, and so are the draft's hidden
    states after the root."""
    found, beam = first_level(tokens_BK, log_p_BK)
    num_rows, topk = tokens_BK.shape
    hidden_NE = hidden_BE.repeat_interleave(topk, 0)
    for level, inp in enumerate(own.levels, 2):
        inp = replace(inp, input_ids_T=beam.tokens_BK.clamp(min=0).flatten(), tree_bits_D=beam.bits_BK.flatten())
        logits_NV, hidden_NE = first_layer(draft, inp, hidden_NE, kv)
        after_NK, log_p_NK = best_tokens(logits_NV, topk)
        shape = num_rows, topk, topk
        found, beam = next_level(found, beam, after_NK.view(shape), log_p_NK.view(shape), level)
        from_BKE = beam.from_BK[:, :, None].expand(-1, -1, hidden_NE.shape[1])
        hidden_NE = hidden_NE.view(num_rows, topk, -1).gather(1, from_BKE).flatten(0, 1)
    return best_tree(root_B, found, topk, own.num_steps, own.num_nodes)


def with_tree(batch: ForwardBatch, own: TreeBatch, tree: Tree) -> ForwardBatch:
    """The target's inputs, with the nodes' positions and masks. Each draws with the noise of its own position."""
    inp, sampling = batch.input, batch.sampling
    positions_BW = own.seq_lens_B[:, None] + tree.depths_BW
    within_BW = torch.minimum(positions_BW, own.limits_B[:, None] - 1)  # a node behind the limit is never kept
    num_prompts, num_draws = (each.shape[0] - positions_BW.numel() for each in (inp.positions_T, sampling.position_L))
    inp = replace(
        inp,
        positions_T=torch.cat((inp.positions_T[:num_prompts], within_BW.flatten())),
        tree_bits_D=tree.bits_BW.flatten(),
    )
    position_L = torch.cat((sampling.position_L[:num_draws], positions_BW.flatten() + 1))
    return replace(batch, input=inp, sampling=replace(sampling, position_L=position_L))


def along(path_BS: Tensor, hidden_TE: Tensor, num_nodes: int) -> Tensor:
    """The hidden states of chunks, then those of the nodes on each path."""
    num_rows, hidden_size = path_BS.shape[0], hidden_TE.shape[1]
    prompts_TE, nodes_TE = hidden_TE.split((hidden_TE.shape[0] - num_rows * num_nodes, num_rows * num_nodes))
    nodes_BWE = nodes_TE.view(num_rows, num_nodes, hidden_size)
    path_BSE = nodes_BWE.gather(1, path_BS[:, :, None].expand(-1, -1, hidden_size))
    return torch.cat((prompts_TE, path_BSE.flatten(0, 1)))


def compact(kv: PagedKv, own: TreeBatch, path_BS: Tensor, kept_B: Tensor) -> None:
    """Moves the target's KV of the kept nodes behind the root to the slots behind the root's."""
    places = torch.arange(1, own.num_steps + 1, device=kept_B.device)
    is_kept_BS = places <= kept_B[:, None]
    from_BS, to_BS = own.slots_BX.gather(1, path_BS[:, 1:]), own.slots_BX[:, 1 : own.num_steps + 1]
    kv.move_tokens(0, *(torch.where(is_kept_BS, slots_BS, 0).flatten() for slots_BS in (from_BS, to_BS)))
