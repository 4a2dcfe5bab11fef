"""The hashes of the fake model and its fake draft: what a token writes into KV, and what a context of KV adds up to.

All sums are of 64-bit integers that wrap. So sums over contexts are exact, and differences of running sums are, too.
Shapes: T tokens, B requests, N tokens of all the contexts read, W = 2 * heads * head_dim numbers of a token's K and V.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from model.inputs import ModelInput, is_visible
from model.sampler import mix, shift_right, signed

MULTIPLIERS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
VALUE_BITS: Final = 22  # float32 holds such integers exactly
_PIECE_SHIFTS: Final = (0, VALUE_BITS, 2 * VALUE_BITS)  # of the three pieces of an int64
PIECES: Final = len(_PIECE_SHIFTS)


@dataclass(frozen=True)
class Contexts:
    """The contexts of all B requests, one after the other. Of a context with a tree mask, the slots that it shows: they
    are the positions 0, 1, ... of the path to that node."""

    positions_N: Tensor
    pages_N: Tensor
    offsets_N: Tensor
    begin_N: Tensor  # where the context of token n begins, as an index into N
    token_T: Tensor  # where each token of the forward lies, as an index into N

    def read(self, kv_layer: Tensor) -> Tensor:
        """The numbers (N, W) of one layer. `kv_layer` is (num_pages, 2, page_size, heads, head_dim)."""
        return kv_layer[self.pages_N, :, self.offsets_N].flatten(1)

    def running(self, values_N: Tensor) -> Tensor:
        """At each token, the sum of `values_N` from its context's beginning to the token, (N,)."""
        sums_N = values_N.cumsum(0)
        return sums_N - (sums_N - values_N)[self.begin_N]


def contexts(inp: ModelInput, page_size: int) -> Contexts:
    """Where the contexts lie, as the page table and seq_lens_B have them."""
    device = inp.seq_lens_B.device
    lens_B = inp.seq_lens_B
    requests_N = torch.repeat_interleave(torch.arange(lens_B.shape[0], device=device), lens_B)
    slots_N = torch.arange(requests_N.shape[0], device=device) - (lens_B.cumsum(0) - lens_B)[requests_N]
    if inp.tree_mask is not None:
        starts_D, bits_D = inp.tree_mask
        num_extends = len(inp.extend_lens)
        starts_B = torch.cat((lens_B[:num_extends], starts_D))
        bits_B = F.pad(bits_D, (num_extends, 0))
        is_seen_N = is_visible(slots_N, starts_B[requests_N], bits_B[requests_N])
        requests_N, slots_N = requests_N[is_seen_N], slots_N[is_seen_N]
        lens_B = requests_N.bincount(minlength=lens_B.shape[0])

    ends_B = lens_B.cumsum(0)
    begin_N = (ends_B - lens_B)[requests_N]
    positions_N = torch.arange(requests_N.shape[0], device=device) - begin_N
    pages_N = inp.page_table_BP[requests_N, slots_N // page_size]

    # The tokens of a request are the last ones of its context.
    counts_B = torch.tensor(inp.extend_lens + (1,) * inp.num_decodes, dtype=torch.int64, device=device)
    behind_B = ends_B - counts_B.cumsum(0)
    token_T = torch.arange(inp.positions_T.shape[0], device=device) + torch.repeat_interleave(behind_B, counts_B)
    return Contexts(positions_N, pages_N, slots_N % page_size, begin_N, token_T)


def write_numbers(kv_layer: Tensor, slots_T: Tensor, numbers_TW: Tensor) -> None:
    """Writes the tokens' numbers to their slots of one layer."""
    page_size = kv_layer.shape[2]
    shape = (-1, 2, *kv_layer.shape[3:])
    kv_layer[slots_T // page_size, :, slots_T % page_size] = numbers_TW.view(shape).to(kv_layer.dtype)


def numbers(prints_T: Tensor, width: int) -> Tensor:
    """The numbers (T, W) that tokens with these 64-bit prints write: integers of VALUE_BITS."""
    return shift_right(prints_T[..., None] * _multipliers(width, prints_T.device), 64 - VALUE_BITS)


def prints(ids_T: Tensor, positions_T: Tensor, layer: int | Tensor) -> Tensor:
    """The 64-bit prints of tokens of the target in one layer; in several, if `layer` is a column of them."""
    return mix(mix(mix(ids_T) ^ positions_T) ^ layer)


def hashed(numbers_NW: Tensor, positions_N: Tensor, layer: int | Tensor) -> Tensor:
    """One hash per token read, from the numbers read and the position that was wanted."""
    total_N = (_whole(numbers_NW) * _multipliers(numbers_NW.shape[-1], numbers_NW.device)).sum(-1)
    return mix(mix(total_N ^ positions_N) ^ layer)


def next_token(hash_L: Tensor, vocab_size: int) -> Tensor:
    """The token that follows a context with this hash."""
    return shift_right(mix(hash_L), 1) % vocab_size


def logits_for(tokens_L: Tensor, vocab_size: int) -> Tensor:
    """(L, V) float32: 100 at the row's token, 0 elsewhere."""
    logits_LV = torch.zeros(tokens_L.shape[0], vocab_size, device=tokens_L.device)
    return logits_LV.scatter_(1, tokens_L[:, None], 100.0)


def pieces(*columns: Tensor) -> Tensor:
    """int64 columns of N rows as float32, (N, PIECES * columns). Each piece has at most VALUE_BITS."""
    parts = [shift_right(column, shift) if shift else column for column in columns for shift in _PIECE_SHIFTS]
    return (torch.stack(parts, dim=-1) & ((1 << VALUE_BITS) - 1)).float()


def joined(pieces_N: Tensor) -> Tensor:
    """The int64 columns of `pieces`: (N, PIECES * C) to (N, C)."""
    whole_NCP = _whole(pieces_N).unflatten(-1, (-1, PIECES))
    shifts = torch.tensor(_PIECE_SHIFTS, device=pieces_N.device)
    columns_NC: Tensor = (whole_NCP << shifts).sum(-1)
    return columns_NC


def _whole(values: Tensor) -> Tensor:
    """float32 as int64. NaN and fractions do not look like a written value."""
    exact = torch.nan_to_num(values.double() * 2**10).to(torch.int64)
    return torch.where(exact & 1023 == 0, exact >> 10, -1)


@cache
def _multipliers(count: int, device: torch.device) -> Tensor:
    values = [signed(MULTIPLIERS[index % len(MULTIPLIERS)] + 2 * index) for index in range(count)]
    return torch.tensor(values, dtype=torch.int64, device=device)
