"""Draws on a GPU in Triton: one kernel for all rows, whatever each asks for, where torch's operations take hundreds.

Tokens equal those of TorchDraws on the same logits, unless exp() differs in its last bits where a draw is about to
change. A row's token does not depend on its batch.
Shapes: L rows, N of them, V vocabulary.
"""

from functools import partial
from typing import Final, NamedTuple

import torch
import triton
from torch import Tensor

from model.sampler_kernels import allow_kernel, draw_kernel
from model.sampling_input import GREEDY_BELOW, AllowedTokens, Drawn, SamplingInput, weight_scale


class Tiles(NamedTuple):
    """What a program reads at once: DEPTH rows of LANES numbers."""

    depth: int
    lanes: int
    warps: int


TILES: Final = Tiles(4, 2048, 16)  # 16 numbers for each thread
ALLOWED: Final = 4096  # numbers that a program of the grammars' kernel copies
RULED: Final = 256  # rows that it looks through at once
_NEG_INF: Final = float("-inf")


class TritonDraws:
    """See Draws."""

    def __init__(self, tiles: Tiles = TILES) -> None:
        self._tiles = tiles

    def only_allowed(self, logits_LV: Tensor, allowed: AllowedTokens) -> Tensor:
        """See Draws."""
        num_rows, vocab_size = logits_LV.shape
        logits_LV, words_NW = logits_LV.contiguous(), allowed.words_NW.contiguous()
        out_LV = torch.empty_like(logits_LV)
        allow_kernel[(num_rows, triton.cdiv(vocab_size, ALLOWED))](
            logits_LV,
            allowed.rows_N.contiguous(),
            words_NW,
            out_LV,
            *words_NW.shape,
            VOCAB=vocab_size,
            BLOCK=ALLOWED,
            ROWS=RULED,
        )
        return out_LV

    def draw(self, logits_LV: Tensor, s: SamplingInput) -> Drawn:
        """See Draws."""
        num_rows, vocab_size = logits_LV.shape
        depth, lanes, warps = self._tiles
        device, logits_LV = logits_LV.device, logits_LV.contiguous()
        # Room for the candidates of each row, which may be all its tokens.
        room = 0 if s.asking.top_k_N is None and s.asking.top_p_N is None else max(vocab_size, lanes)
        values_LR = torch.empty((num_rows, room), dtype=torch.float32, device=device)
        ids_LR = torch.empty((num_rows, room), dtype=torch.int32, device=device)
        tokens_L = torch.empty(num_rows, dtype=torch.int64, device=device)
        limits_L = torch.empty(num_rows, dtype=torch.float32, device=device)
        firsts_L = torch.empty(num_rows, dtype=torch.int32, device=device)

        draw_kernel[(num_rows,)](
            logits_LV,
            *[column_L.contiguous() for column_L in (*s.params, s.position_L)],
            values_LR,
            ids_LR,
            tokens_L,
            limits_L,
            firsts_L,
            room,
            int(s.allowed is not None),
            VOCAB=vocab_size,
            SCALE=weight_scale(vocab_size),
            GREEDY_BELOW=GREEDY_BELOW,
            DEPTH=depth,
            LANES=lanes,
            BLOCKS=triton.next_power_of_2(triton.cdiv(vocab_size, depth * lanes)),
            num_warps=warps,
        )
        return Drawn(tokens_L, partial(_drawn_from, logits_LV, s, limits_L, firsts_L))


def _drawn_from(logits_LV: Tensor, s: SamplingInput, limits_L: Tensor, firsts_L: Tensor, rows_N: Tensor) -> Tensor:
    """See Drawn. Made of what the kernel has written, for few rows."""
    logits_NV = logits_LV.index_select(0, rows_N)
    temperature_N1, min_p_N1, limit_N1, first_N1 = (
        column_L.index_select(0, rows_N)[:, None]
        for column_L in (s.params.temperature_L, s.params.min_p_L, limits_L, firsts_L)
    )
    is_greedy_N1 = temperature_N1 < GREEDY_BELOW
    scaled_NV = logits_NV / torch.where(is_greedy_N1, 1.0, temperature_N1)
    largest_N1 = scaled_NV.amax(dim=1, keepdim=True)
    id_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)

    is_out_NV = (scaled_NV < limit_N1) | ((scaled_NV == limit_N1) & (id_V < first_N1))
    is_out_NV |= ((scaled_NV - largest_N1).exp() < min_p_N1) & (scaled_NV < largest_N1)
    return torch.where(is_greedy_N1, logits_NV, scaled_NV.masked_fill_(is_out_NV, _NEG_INF))
