"""Decodes that are the nodes of trees, built by hand: every node in a slot of its own behind the request's context."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from model.inputs import ModelInput
from testkit.inputs import decodes
from tests.model.driving import Lane

PARENTS = (-1, 0, 0, 1, 1, 2, 5)  # of each node; the root has none


def paths(parents: Sequence[int] = PARENTS) -> list[list[int]]:
    """The nodes from the root to each node."""
    found: list[list[int]] = []
    for node, parent in enumerate(parents):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


def tree_input(
    lane: Lane, ids: Sequence[int], page_size: int, width: int, parents: Sequence[int] = PARENTS
) -> ModelInput:
    """A tree behind the lane's computed tokens: node i, with token ids[i], is in slot lane.done + i.

    All nodes have the same `seq_lens_B`, behind the last of them. The page table has `width` pages.
    """
    count, ways = len(parents), paths(parents)
    tables_BP = torch.tensor([lane.pages + [0] * (width - len(lane.pages))] * count)
    return replace(
        decodes(torch.tensor(ids), lane.done + torch.arange(count), tables_BP, page_size),
        positions_T=torch.tensor([lane.done + len(way) - 1 for way in ways]),
        seq_lens_B=torch.full((count,), lane.done + count),
        tree_starts_D=torch.full((count,), lane.done),
        tree_bits_D=torch.tensor([sum(1 << node for node in way) for way in ways]),
    )


def all_trees(inputs: Sequence[ModelInput]) -> ModelInput:
    """Trees with page tables of one width as one forward, every node wanted."""
    tensors: dict[str, Any] = {name: torch.cat([inp.tensors[name] for inp in inputs]) for name in inputs[0].tensors}
    num = len(tensors["input_ids_T"])
    tensors["logit_indices_L"] = torch.arange(num)
    longest = max(inp.max_decode_seq_len for inp in inputs)
    return replace(inputs[0], **tensors, num_decodes=num, max_decode_seq_len=longest)
