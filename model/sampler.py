"""Batched sampling: a token per row of logits, with noise that depends on (seed, choice, position) and nothing else.

Masks follow transformers: temperature, then top-k, top-p, min-p, each on what the one before left. The draw is the
inverse of the cumulative distribution, in vocabulary order, at one uniform number per row, so that a row's token does
not depend on its neighbours. What it does not know: requests, text, or when to stop. Shapes: L rows, V vocabulary.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from model.splitmix import mix, shift_right

NOT_A_TOKEN: Final = -1  # drawn from logits that are not finite
GREEDY_BELOW: Final = 1e-30  # a temperature so low that logits divided by it would leave float32
_NEG_INF: Final = float("-inf")


@dataclass(frozen=True)
class SamplingInput:
    """Sampling parameters of L rows. Tensors are on the model's device; the rest is on the host."""

    temperature_L: Tensor  # float32; 0: greedy
    top_k_L: Tensor  # int64; 0: off
    top_p_L: Tensor  # float32; 1: off
    min_p_L: Tensor  # float32; 0: off
    seed_L: Tensor  # int64
    choice_L: Tensor  # int64
    position_L: Tensor  # int64: tokens before the sampled one, prompt included
    banned: tuple[tuple[int, tuple[int, ...]], ...]  # (row, token ids that may not be sampled)
    all_greedy: bool
    any_top_k: bool
    any_top_p: bool
    any_min_p: bool

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The columns."""
        columns = (self.temperature_L, self.top_k_L, self.top_p_L, self.min_p_L, self.seed_L, self.choice_L)
        return (*columns, self.position_L)


@torch.no_grad()
def sample(logits_LV: Tensor, s: SamplingInput) -> Tensor:
    """The sampled tokens, (L,) int64; greedy rows take the first of the largest logits. `logits_LV` is not changed.

    A row with a NaN, an infinity or nothing but -inf has no right token: it gets NOT_A_TOKEN, and disturbs no other.
    """
    if logits_LV.shape[0] == 0:
        return torch.empty(0, dtype=torch.int64, device=logits_LV.device)
    logits_LV = _without_banned(logits_LV.float(), s.banned)
    greedy_L = logits_LV.argmax(dim=-1)
    largest_L = logits_LV.gather(1, greedy_L[:, None])[:, 0]  # NaN, if there is one anywhere in the row
    has_none_L = largest_L - largest_L != 0  # not finite; isfinite() takes ten times as long
    if s.all_greedy:
        return greedy_L.masked_fill_(has_none_L, NOT_A_TOKEN)
    is_greedy_L = s.temperature_L < GREEDY_BELOW
    scaled_LV = logits_LV / torch.where(is_greedy_L, 1.0, s.temperature_L)[:, None]
    masked_LV = mask_logits(scaled_LV, s)
    uniform_L = uniform(s.seed_L, s.choice_L, s.position_L)
    tokens_L = torch.where(is_greedy_L, greedy_L, _draw(masked_LV, uniform_L))
    return tokens_L.masked_fill_(has_none_L, NOT_A_TOKEN)


def mask_logits(scaled_LV: Tensor, s: SamplingInput) -> Tensor:
    """Temperature-scaled logits with -inf where top-k, top-p or min-p excludes a token."""
    if s.any_top_k or s.any_top_p:
        scaled_LV = _mask_top(scaled_LV, s)
    if s.any_min_p:
        probs_LV = torch.softmax(scaled_LV, dim=-1)
        floor_L1 = s.min_p_L[:, None] * probs_LV.amax(dim=-1, keepdim=True)
        # The largest always stays, also with min_p above 1 or rounding.
        is_largest_LV = scaled_LV == scaled_LV.amax(dim=-1, keepdim=True)
        scaled_LV = scaled_LV.masked_fill((probs_LV < floor_L1) & ~is_largest_LV, _NEG_INF)
    return scaled_LV


def uniform(seed_L: Tensor, choice_L: Tensor, position_L: Tensor) -> Tensor:
    """One number in [0, 1) per row, float64, the same on every device: a hash of the three."""
    mixed_L = mix(seed_L)
    mixed_L = mix(mixed_L ^ choice_L)
    mixed_L = mix(mixed_L ^ position_L)
    return shift_right(mixed_L, 11).to(torch.float64) * 2.0**-53


def _without_banned(logits_LV: Tensor, banned: tuple[tuple[int, tuple[int, ...]], ...]) -> Tensor:
    if not banned:
        return logits_LV
    known = range(logits_LV.shape[-1])  # a folder may name an ending that its model does not have
    pairs = [(row, token) for row, tokens in banned for token in tokens if token in known]
    rows_N, tokens_N = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).to(logits_LV.device).unbind(1)
    return logits_LV.index_put((rows_N, tokens_N), torch.tensor(_NEG_INF, device=logits_LV.device))


def _mask_top(scaled_LV: Tensor, s: SamplingInput) -> Tensor:
    """top-k then top-p. Both need the order of the row: sorted once, ascending."""
    vocab_size = scaled_LV.shape[-1]
    sorted_LV, order_LV = torch.sort(scaled_LV, dim=-1, stable=True)
    if s.any_top_k:
        k_L = torch.where(s.top_k_L <= 0, vocab_size, s.top_k_L).clamp(max=vocab_size)
        kth_L1 = sorted_LV.gather(1, (vocab_size - k_L)[:, None])
        scaled_LV = scaled_LV.masked_fill(scaled_LV < kth_L1, _NEG_INF)
        sorted_LV = sorted_LV.masked_fill(sorted_LV < kth_L1, _NEG_INF)
    if s.any_top_p:
        cumulative_LV = torch.softmax(sorted_LV, dim=-1).cumsum(dim=-1)
        remove_LV = (cumulative_LV <= 1 - s.top_p_L[:, None]) & (s.top_p_L < 1)[:, None]
        remove_LV[:, -1] = False
        scaled_LV = scaled_LV.masked_fill(torch.zeros_like(remove_LV).scatter(1, order_LV, remove_LV), _NEG_INF)
    return scaled_LV


def _draw(masked_LV: Tensor, uniform_L: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds the row's uniform number."""
    cumulative_LV = torch.softmax(masked_LV, dim=-1).cumsum(dim=-1, dtype=torch.float64)
    total_L = cumulative_LV[:, -1]
    # Strictly below the total, so that some token exceeds it; that token cannot have probability zero.
    target_L = torch.minimum(uniform_L * total_L, torch.nextafter(total_L, torch.zeros_like(total_L)))
    drawn_L = torch.searchsorted(cumulative_LV, target_L[:, None], right=True)[:, 0]
    return drawn_L.clamp(max=masked_LV.shape[-1] - 1)
