"""Log-probabilities of drawn tokens, and of the likeliest ones beside them.

A token's log-probability is its logit less the logarithm of the sum of exp(logits), in float32. Its rank counts the
tokens with a greater logit, and itself. protocol/logprobs.py says how they travel.
Shapes: L rows of logits, N of them that ask, V vocabulary, K likeliest tokens, W = 2 + 2 * K words.
"""

from typing import NamedTuple

import torch
from torch import Tensor


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
    top_NK, ids_NK = logits_NV.topk(num_top)
    logprobs = (torch.cat((chosen_N1, top_NK), 1) - logits_NV.logsumexp(1, keepdim=True)).clamp_(max=0)

    words_NW = torch.empty((len(tokens_N), 2 + 2 * num_top), dtype=torch.int32, device=logits_NV.device)
    words_NW[:, 0], words_NW[:, 1] = logprobs[:, 0].view(torch.int32), rank_N
    words_NW[:, 2::2], words_NW[:, 3::2] = ids_NK, logprobs[:, 1:].contiguous().view(torch.int32)
    return words_NW
