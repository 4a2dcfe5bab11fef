"""Trees of proposals: which of a draft's candidates the target verifies, and which of them are kept.

    candidates   level 1: K tokens; each later level: K tokens after each of the K best of the level before
    tree         the W - 1 candidates with the largest scores, behind the root, which is the last known token
    path         from the root to the child that equals the target's draw, as long as there is one

A candidate's score is the log-probability of its path. So a parent's is never smaller, and every sort is stable: the
best candidates contain the parents of each. Candidates are numbered in the order in which they are proposed, nodes in
the order of their candidates: parents come first. Method: Li et al. 2024 (EAGLE-2).
Shapes: B rows, K proposals after a token, C candidates, W nodes, S levels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Candidates:
    """All that was proposed so far. A parent is the number of a candidate; -1: the root."""

    tokens_BC: Tensor  # negative: nothing is proposed
    scores_BC: Tensor
    parents_BC: Tensor


@dataclass(frozen=True)
class Beam:
    """The K candidates of one level after which the draft proposes. `from_BK`: whom each follows in the beam before.

    `bits_BK`: the draft's slots on the path of each. The beam of level t has the bits from (t - 1) * K on.
    """

    numbers_BK: Tensor
    tokens_BK: Tensor
    scores_BK: Tensor
    from_BK: Tensor
    bits_BK: Tensor


@dataclass(frozen=True)
class Nodes:
    """What the target verifies. Node 0 is the root, whose parent is -1. Bit i of a node: node i is on its path."""

    tokens_BW: Tensor
    parents_BW: Tensor
    depths_BW: Tensor
    bits_BW: Tensor


def best_tokens(logits_NV: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """The most likely tokens (N, K) and their log-probabilities. What is not a number counts as the lowest."""
    logits_NV = logits_NV.float()
    best_NK, tokens_NK = logits_NV.topk(topk)
    log_p_NK = best_NK - logits_NV.logsumexp(-1, keepdim=True)
    return tokens_NK, log_p_NK.nan_to_num(nan=-torch.inf)


def first_level(tokens_BK: Tensor, log_p_BK: Tensor) -> tuple[Candidates, Beam]:
    """The proposals after the root. All of them are in the beam."""
    numbers_BK = torch.arange(tokens_BK.shape[1], device=tokens_BK.device).expand_as(tokens_BK)
    beam = Beam(numbers_BK, tokens_BK, log_p_BK, torch.zeros_like(tokens_BK), 1 << numbers_BK)
    return Candidates(tokens_BK, log_p_BK, torch.full_like(tokens_BK, -1)), beam


def next_level(
    before: Candidates, beam: Beam, tokens_BKK: Tensor, log_p_BKK: Tensor, level: int
) -> tuple[Candidates, Beam]:
    """Adds what the draft proposes after the beam of level - 1. `level` counts from 1."""
    topk, num_before = tokens_BKK.shape[-1], before.tokens_BC.shape[1]
    scores_BN = (beam.scores_BK[:, :, None] + log_p_BKK).flatten(1)
    tokens_BN = tokens_BKK.flatten(1)
    candidates = Candidates(
        torch.cat((before.tokens_BC, tokens_BN), 1),
        torch.cat((before.scores_BC, scores_BN), 1),
        torch.cat((before.parents_BC, beam.numbers_BK.repeat_interleave(topk, 1)), 1),
    )

    best_BK = _largest(scores_BN, topk)
    from_BK = best_BK // topk
    own_K = 1 << torch.arange((level - 1) * topk, level * topk, device=best_BK.device)
    return candidates, Beam(
        numbers_BK=num_before + best_BK,
        tokens_BK=tokens_BN.gather(1, best_BK),
        scores_BK=scores_BN.gather(1, best_BK),
        from_BK=from_BK,
        bits_BK=beam.bits_BK.gather(1, from_BK) | own_K,
    )


def best_tree(root_B: Tensor, candidates: Candidates, topk: int, num_levels: int, num_nodes: int) -> Nodes:
    """The tree of the best candidates behind the last known tokens `root_B`."""
    numbers_BN = _largest(candidates.scores_BC, num_nodes - 1).sort(1).values
    parents_BN = candidates.parents_BC.gather(1, numbers_BN)
    above_BN = torch.where(parents_BN < 0, 0, 1 + torch.searchsorted(numbers_BN, parents_BN))
    none_B1 = torch.full_like(root_B, -1)[:, None]
    parents_BW = torch.cat((none_B1, above_BN), 1)

    levels_BN = 2 + (numbers_BN - topk).div(topk * topk, rounding_mode="floor")
    own_W = 1 << torch.arange(num_nodes, device=root_B.device)
    bits_BW = own_W.expand_as(parents_BW)
    for _ in range(num_levels):
        bits_BW = own_W | bits_BW.gather(1, parents_BW.clamp(min=0))
    return Nodes(
        tokens_BW=torch.cat((root_B[:, None], candidates.tokens_BC.gather(1, numbers_BN)), 1),
        parents_BW=parents_BW,
        depths_BW=torch.cat((none_B1 + 1, levels_BN), 1),
        bits_BW=bits_BW,
    )


def empty_tree(root_B: Tensor, num_nodes: int) -> Nodes:
    """A tree where nothing is proposed behind the last known tokens `root_B`."""
    nodes_BW = torch.arange(num_nodes, device=root_B.device).expand(root_B.shape[0], -1)
    is_root_BW = nodes_BW == 0
    return Nodes(
        tokens_BW=torch.where(is_root_BW, root_B[:, None], -1),
        parents_BW=torch.where(is_root_BW, -1, 0),
        depths_BW=torch.where(is_root_BW, 0, 1),
        bits_BW=1 << nodes_BW | 1,
    )


def walk(tree: Nodes, drawn_BW: Tensor, room_B: Tensor, num_levels: int) -> tuple[Tensor, Tensor]:
    """The nodes whose tokens the target has drawn, from the root on (B, S + 1), and how many are kept behind the root.

    The path repeats its last node. Nodes from `room_B` on have no slot and are never kept.
    """
    num_nodes = drawn_BW.shape[1]
    may_BW = (tree.tokens_BW >= 0) & (torch.arange(num_nodes, device=drawn_BW.device) < room_B[:, None])
    at_B1 = torch.zeros_like(room_B)[:, None]
    path, kept_B = [at_B1], torch.zeros_like(room_B)
    for _ in range(num_levels):
        follows_BW = may_BW & (tree.parents_BW == at_B1) & (tree.tokens_BW == drawn_BW.gather(1, at_B1))
        has_next_B1 = follows_BW.any(1, keepdim=True)
        at_B1 = torch.where(has_next_B1, follows_BW.int().argmax(1, keepdim=True), at_B1)
        path.append(at_B1)
        kept_B = kept_B + has_next_B1[:, 0]
    return torch.cat(path, 1), kept_B


def _largest(scores_BC: Tensor, count: int) -> Tensor:
    """The places of the largest, of equals the first ones."""
    return scores_BC.sort(dim=1, descending=True, stable=True).indices[:, :count]
