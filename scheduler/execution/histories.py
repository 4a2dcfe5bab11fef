"""The tokens of contexts on the device, for rows whose logits depend on them (penalties, bad words).

A row's tokens are written from the host when it joins, and by each launch when it has drawn. Only the tokens before the
next position count, so what is taken back needs no undoing: it is written again. Only the forward stream uses them, in
the order of the launches. Without such rows nothing is kept.
Shapes: R rows, T tokens of the longest context so far, N rows with rules, L rows that draw, S tokens from the host,
B rows that decode, W tokens of each that the target verifies.
"""

from itertools import chain
from typing import Final

import numpy as np
import torch
from torch import Tensor

from model.logit_rules import RuleColumns
from model.sampling_input import SamplingInput
from scheduler.plan import Plan

_STEP: Final = 256  # a width is a multiple of it, so that few shapes occur


def width_for(seq_len: int, num_ahead: int) -> int:
    """Columns for a context of so many tokens, and for `num_ahead` more."""
    return -(-(seq_len + num_ahead) // _STEP) * _STEP


def seeds_of(plan: Plan, device: torch.device) -> Tensor | None:
    """(3, S) int64: row, position and token of each context that comes with a plan. None: none does."""
    draws = chain((join.draw for join in plan.joins), *(chunk.draws for chunk in plan.chunks))
    asking = [draw for draw in draws if draw.context]
    if not asking:
        return None
    lens = [len(draw.context) for draw in asking]
    rows = np.repeat([draw.row for draw in asking], lens)
    positions = np.concatenate([np.arange(length) for length in lens])
    tokens = np.concatenate([draw.context for draw in asking])
    return torch.from_numpy(np.stack((rows, positions, tokens)).astype(np.int64)).to(device, non_blocking=True)


class Histories:
    """One for each executor. All methods run on the forward stream."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._tokens_RT = torch.zeros((num_rows, 0), dtype=torch.int32, device=device)

    def begin(self, rules: RuleColumns | None, seeds_3S: Tensor | None) -> Tensor | None:
        """Writes the contexts that came with a launch. Returns those of its rows with rules, (N, T) int64: what lies
        behind their ends has no meaning. None: no rule reads them."""
        if rules is None or not rules.reads_context:
            return None
        num_rows, width = self._tokens_RT.shape
        if width < rules.width:
            with torch.inference_mode(False):  # later writes may come from outside of it
                wider_RT = torch.zeros((num_rows, rules.width), dtype=torch.int32, device=self._tokens_RT.device)
                wider_RT[:, :width] = self._tokens_RT
            self._tokens_RT = wider_RT
        if seeds_3S is not None:
            rows_S, positions_S, tokens_S = seeds_3S
            self._tokens_RT[rows_S, positions_S] = tokens_S.int()
        return self._tokens_RT[:, : rules.width].index_select(0, rules.held_N).long()

    def write(self, rows_L: Tensor, positions_L: Tensor, tokens_L: Tensor) -> None:
        """Writes drawn tokens. Row 0 takes those that are none, and those of rows that no rule reads."""
        is_there_L = (tokens_L >= 0) & (positions_L < self._tokens_RT.shape[1])
        rows_L, positions_L = rows_L.where(is_there_L, 0), positions_L.where(is_there_L, 0)
        self._tokens_RT[rows_L, positions_L] = tokens_L.int()


def with_paths(
    history_NT: Tensor, sampling: SamplingInput, num_draws: int, ids_BW: Tensor, bits_D: Tensor | None
) -> Tensor:
    """The contexts of a launch that verifies, each with the tokens on the path to its node. They stand before it.

    The first `num_draws` rows of logits are those of prompts, then W of each row that decodes. `bits_D` (B * W,): the
    nodes that each one sees, itself included. None: those before it, and itself.
    """
    assert sampling.rules is not None
    rows_N, width = sampling.rules.rows_N - num_draws, ids_BW.shape[1]
    is_node_N, node_N = rows_N >= 0, rows_N.clamp(min=0)
    at_W = torch.arange(width, device=rows_N.device)
    if ids_BW.shape[0] == 0:
        return history_NT

    batch_N = node_N // width
    if bits_D is None:
        is_on_path_NW = at_W <= (node_N % width)[:, None]
    else:
        is_on_path_NW = (bits_D.index_select(0, node_N)[:, None] >> at_W) & 1 == 1
    positions_BW = (sampling.position_L[num_draws:] - 1).view(-1, width)

    # A last column takes the nodes that are not on the path.
    nowhere = history_NT.shape[1]
    places_NW = positions_BW.index_select(0, batch_N).where(is_on_path_NW & is_node_N[:, None], nowhere)
    wider_NT = torch.cat((history_NT, history_NT.new_zeros((history_NT.shape[0], 1))), 1)
    return wider_NT.scatter_(1, places_NW, ids_BW.index_select(0, batch_N))[:, :nowhere]
