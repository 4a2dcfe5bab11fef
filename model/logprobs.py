"""Log-probabilities of tokens, drawn ones and those of prompts, and of the likeliest ones beside them.

A token's log-probability is its logit less the logarithm of the sum of exp(logits), in float32. Its rank counts the
tokens with a greater logit, and itself. protocol/logprobs.py says how they travel.
Shapes: L rows of logits, N of them that ask, V vocabulary, K likeliest tokens, W = 2 + 2 * K words, S scored tokens of
prompts, E hidden.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

MAX_LOGITS: Final = 2**24  # that are in memory at a time while a prompt is scored


class LogprobRows(NamedTuple):
    """The rows that ask."""

    rows: tuple[int, ...]  # indices into L, ascending
    rows_N: Tensor  # int64: the same on the device
    processed_N: Tensor | None  # bool: whether the row asks for those of what it was drawn from; None: none does
    num_top: int  # K: the most that any of them asks for


def score(logits_NV: Tensor, tokens_N: Tensor, num_top: int) -> Tensor:
    """Those of `tokens_N` (int64; a negative one counts as 0), as int32 words (N, W)."""
    num_top = min(num_top, logits_NV.shape[1])
    chosen_N1 = logits_NV.gather(1, tokens_N.clamp(min=0)[:, None])
    rank_N = (logits_NV > chosen_N1).sum(1) + 1
    ids_NK = likeliest(logits_NV, num_top)
    top_NK = logits_NV.gather(1, ids_NK)
    logprobs = (torch.cat((chosen_N1, top_NK), 1) - logits_NV.logsumexp(1, keepdim=True)).clamp_(max=0)

    words_NW = torch.empty((len(tokens_N), 2 + 2 * num_top), dtype=torch.int32, device=logits_NV.device)
    words_NW[:, 0], words_NW[:, 1] = logprobs[:, 0].view(torch.int32), rank_N
    words_NW[:, 2::2], words_NW[:, 3::2] = ids_NK, logprobs[:, 1:].contiguous().view(torch.int32)
    return words_NW


def likeliest(logits_NV: Tensor, num_top: int) -> Tensor:
    """Ids of the greatest logits (float32), the greatest first, (N, K). Of equal ones the smaller id comes first, so a
    row has the same ids in any batch, and with a smaller K the same first ones."""
    bits_NV = (logits_NV + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0
    ordered_NV = bits_NV ^ ((bits_NV >> 31) & 0x7FFFFFFF)  # as integers, in the order of the floats
    last = logits_NV.shape[1] - 1
    from_last_V = torch.arange(last, -1, -1, device=logits_NV.device)
    keys_NV = (ordered_NV.to(torch.int64) << 32) + from_last_V  # no two of a row are equal
    return last - (keys_NV.topk(num_top).values & 0xFFFFFFFF)


class PromptRows(NamedTuple):
    """The tokens of prompts that a launch scores."""

    rows_S: Tensor  # int64: of the token before each, an index into the tokens of the forward
    next_S: Tensor  # int64: the tokens
    num_top: int  # K: the most that any prompt asks for


def score_hidden(
    hidden_SE: Tensor, logits: Callable[[Tensor], Tensor], tokens_S: Tensor, num_top: int, vocab_size: int
) -> Tensor:
    """What `score` gives for the tokens behind these hidden states, (S, W). `logits` makes logits of hidden states: of
    a block of them at a time, since those of a long chunk would take gigabytes."""
    block = max(1, MAX_LOGITS // vocab_size)
    parts = zip(hidden_SE.split(block), tokens_S.split(block), strict=True)
    return torch.cat([score(logits(part_BE), tokens_B, num_top) for part_BE, tokens_B in parts])
