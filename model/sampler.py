"""Batched sampling: a token per row of logits, drawn by torch's operations.

Its noise depends on (seed, choice, position) only.
Rules of requests come first, see logit_rules.py. Masks follow transformers: temperature, then top-k, top-p, min-p, each
for the rows that use it. The draw inverts the cumulative distribution at one uniform number per row. No call waits for
the device. Of equal logits, top-k keeps all that equal the k-th largest; top-p keeps only as many as it needs, those
with the higher ids. `draws_of` chooses what draws on a device: torch's operations, or sampler_triton.py on a GPU.
The hash is splitmix64's mixing step (Steele, Lea, Flood 2014) on int64, which wraps on overflow on every device.
Shapes: L rows, N of them that use a mask, E token ids, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Final, NamedTuple

import torch
from torch import Tensor

from model.logit_rules import apply_rules
from model.logprobs import LogprobRows, score
from model.sampling_input import (
    GREEDY_BELOW,
    NOT_A_TOKEN,
    NOTHING_LEFT,
    AllowedTokens,
    Banned,
    Drawn,
    Draws,
    SamplingInput,
    weight_scale,
)

_NEG_INF: Final = float("-inf")
_CACHED: Final = 2**18  # logits that stay in a CPU's cache
_DIGITS: Final = ((22, 2**10), (11, 2**11), (0, 2**11))  # of a 32-bit key, highest first: (shift, number of values)
_WRAP: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


class Sampled(NamedTuple):
    """What was drawn."""

    tokens_L: Tensor  # int64
    logprobs_NW: Tensor | None  # of the rows that ask, see score(); None: no row asks


def sample(logits_LV: Tensor, s: SamplingInput, history_NT: Tensor | None = None) -> Tensor:
    """The tokens of `sample_scored`."""
    sampled: Sampled = sample_scored(logits_LV, s, history_NT)
    return sampled.tokens_L


def sample_scored(
    logits_LV: Tensor, s: SamplingInput, history_NT: Tensor | None = None, draws: Draws | None = None
) -> Sampled:
    """Draws a token for each row. Greedy rows take the first of the largest logits. `logits_LV` is not changed.

    A row with a NaN, an infinity or only -inf gets NOT_A_TOKEN, or NOTHING_LEFT if a mask has left only -inf. It does
    not affect other rows. `history_NT`: see apply_rules. `draws` None: those of the logits' device.
    """
    if logits_LV.shape[0] == 0:
        return Sampled(torch.empty(0, dtype=torch.int64, device=logits_LV.device), None)

    draws = draws or draws_of(logits_LV.device)
    raw_LV = logits_LV = logits_LV.float()
    if s.rules is not None:
        logits_LV = apply_rules(logits_LV, s.position_L, s.rules, history_NT)
    if s.banned is not None:
        logits_LV = _without_banned(logits_LV, s.position_L, s.banned)
    if s.allowed is not None:
        logits_LV = draws.only_allowed(logits_LV, s.allowed)
    drawn = draws.draw(logits_LV, s)
    return Sampled(drawn.tokens_L, s.logprobs and _logprobs(s.logprobs, drawn, raw_LV))


def draws_of(device: torch.device) -> Draws:
    """What draws on this device: on a GPU the kernels in Triton, if it is installed."""
    if device.type == "cuda" and find_spec("triton") is not None:
        from model.sampler_triton import TritonDraws  # noqa: PLC0415 - an optional package, for GPUs

        return TritonDraws()
    return TorchDraws()


class TorchDraws:
    """Draws by torch's operations, on any device."""

    def only_allowed(self, logits_LV: Tensor, allowed: AllowedTokens) -> Tensor:
        """See Draws."""
        bits_NWB = (allowed.words_NW[:, :, None] >> torch.arange(32, device=logits_LV.device, dtype=torch.int32)) & 1
        is_out_NV = bits_NWB.flatten(1)[:, : logits_LV.shape[1]] == 0
        masked_NV = logits_LV.index_select(0, allowed.rows_N).masked_fill_(is_out_NV, _NEG_INF)
        return logits_LV.index_copy(0, allowed.rows_N, masked_NV)

    def draw(self, logits_LV: Tensor, s: SamplingInput) -> Drawn:
        """See Draws."""
        greedy_L = logits_LV.argmax(dim=-1)
        largest_L = logits_LV.gather(1, greedy_L[:, None])[:, 0]  # NaN if the row has one
        has_none_L = largest_L - largest_L != 0  # not finite; isfinite() takes ten times as long
        if s.asking.all_greedy:
            return Drawn(_marked(greedy_L, largest_L, has_none_L, s), partial(logits_LV.index_select, 0))

        is_greedy_L = s.params.temperature_L < GREEDY_BELOW
        scaled_LV = logits_LV / torch.where(is_greedy_L, 1.0, s.params.temperature_L)[:, None]
        masked_LV = mask_logits(scaled_LV, s)
        uniform_L = uniform(s.params.seed_L, s.params.choice_L, s.position_L)
        tokens_L = torch.where(is_greedy_L, greedy_L, _draw(masked_LV, uniform_L))

        def logits_of(rows_N: Tensor) -> Tensor:
            is_greedy_N1 = is_greedy_L.index_select(0, rows_N)[:, None]
            return torch.where(is_greedy_N1, logits_LV.index_select(0, rows_N), masked_LV.index_select(0, rows_N))

        return Drawn(_marked(tokens_L, largest_L, has_none_L, s), logits_of)


def _marked(tokens_L: Tensor, largest_L: Tensor, has_none_L: Tensor, s: SamplingInput) -> Tensor:
    """`tokens_L`, with what stands for no token in rows that have none to draw."""
    tokens_L.masked_fill_(has_none_L, NOT_A_TOKEN)
    return tokens_L if s.allowed is None else tokens_L.masked_fill_(largest_L == _NEG_INF, NOTHING_LEFT)


def _logprobs(asked: LogprobRows, drawn: Drawn, raw_LV: Tensor) -> Tensor:
    """The log-probabilities of what the rows that ask have drawn, wherever they are in a batch."""
    logits_NV = raw_LV.index_select(0, asked.rows_N)
    if asked.processed_N is not None:
        logits_NV = torch.where(asked.processed_N[:, None], drawn.logits_of(asked.rows_N), logits_NV)
    return score(logits_NV, drawn.tokens_L.index_select(0, asked.rows_N), asked.num_top)


def mask_logits(scaled_LV: Tensor, s: SamplingInput) -> Tensor:
    """Temperature-scaled logits with -inf where top-k, top-p or min-p excludes a token. `scaled_LV` is changed."""
    for mask, rows_N, column_L in (
        (_mask_top_k, s.asking.top_k_N, s.params.top_k_L),
        (_mask_top_p, s.asking.top_p_N, s.params.top_p_L),
        (_mask_min_p, s.asking.min_p_N, s.params.min_p_L),
    ):
        if rows_N is not None:
            _mask_rows(scaled_LV, mask, rows_N, column_L)
    return scaled_LV


def uniform(seed_L: Tensor, choice_L: Tensor, position_L: Tensor) -> Tensor:
    """One number in [0, 1) per row, float64: a hash of the three columns, the same on every device."""
    mixed_L = mix(seed_L)
    mixed_L = mix(mixed_L ^ choice_L)
    mixed_L = mix(mixed_L ^ position_L)
    return shift_right(mixed_L, 11).to(torch.float64) * 2.0**-53


def signed(value: int) -> int:
    """The int64 with the low 64 bits of `value`."""
    value &= _WRAP
    return value - (1 << 64) if value >> 63 else value


def shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift by 1 to 63 bits (int64's own shift keeps the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """One step on each element."""
    x = x + signed(_GAMMA)
    x = (x ^ shift_right(x, 30)) * signed(_FIRST)
    x = (x ^ shift_right(x, 27)) * signed(_SECOND)
    return x ^ shift_right(x, 31)


def _without_banned(logits_LV: Tensor, position_L: Tensor, banned: Banned) -> Tensor:
    """A copy with -inf at the banned tokens of the rows whose ban still holds."""
    vocab_size = logits_LV.shape[-1]
    ids_NE, rows_N1 = banned.ids_NE, banned.rows_N[:, None]
    is_bound_N1 = (position_L.index_select(0, banned.rows_N) < banned.until_N)[:, None]
    bans_NE = is_bound_N1 & (ids_NE >= 0) & (ids_NE < vocab_size)
    # amin keeps the lower value, so an id that bans nothing (+inf) does not change the logit.
    values_NE = torch.where(bans_NE, _NEG_INF, float("inf"))
    places_NE = rows_N1 * vocab_size + ids_NE.clamp(0, vocab_size - 1)
    flat = logits_LV.reshape(-1).scatter_reduce(0, places_NE.view(-1), values_NE.view(-1), "amin")
    return flat.view_as(logits_LV)


def _mask_rows(scaled_LV: Tensor, mask: Callable[[Tensor, Tensor], Tensor], rows_N: Tensor, column_L: Tensor) -> None:
    """Applies a mask to the rows that use it, and reads no other row."""
    # A CPU takes as many rows at a time as fit into its cache.
    num_together = max(1, _CACHED // scaled_LV.shape[-1]) if scaled_LV.is_cpu else len(rows_N)
    for part_N in rows_N.split(num_together):
        scaled_NV = scaled_LV.index_select(0, part_N)
        cut_NV = mask(scaled_NV, column_L.index_select(0, part_N)[:, None])
        scaled_LV.index_copy_(0, part_N, scaled_NV.masked_fill_(cut_NV, _NEG_INF))


def _mask_top_k(scaled_NV: Tensor, k_N1: Tensor) -> Tensor:
    """True where a token is below the k-th largest."""
    key_NV = _keys(scaled_NV)
    vocab_size = key_NV.shape[-1]
    one_NV = torch.ones((), dtype=torch.int64, device=key_NV.device).expand_as(key_NV)
    limit_N1, _, _ = _first_that_stays(key_NV, one_NV, vocab_size - k_N1.clamp(max=vocab_size))
    return key_NV < limit_N1


def _mask_top_p(scaled_NV: Tensor, top_p_N1: Tensor) -> Tensor:
    """True where a token is not needed to reach a probability of top_p.

    Tokens are dropped in ascending order (equal ones by id) while the others still reach top_p.
    """
    vocab_size = scaled_NV.shape[-1]
    shares_NV = (scaled_NV - scaled_NV.amax(dim=-1, keepdim=True)).exp_()
    weight_NV = shares_NV.mul_(weight_scale(vocab_size)).long()
    total_N1 = weight_NV.sum(dim=-1, keepdim=True)
    kept_N1 = (top_p_N1.double() * total_N1.double()).ceil().long()
    rest_N1 = total_N1 - kept_N1.clamp(min=1)  # at least the largest stays

    key_NV = _keys(scaled_NV)
    limit_N1, weight_NV, rest_N1 = _first_that_stays(key_NV, weight_NV, rest_N1)
    return (key_NV < limit_N1) | ((key_NV == limit_N1) & (weight_NV.cumsum(dim=-1) <= rest_N1))


def _mask_min_p(scaled_NV: Tensor, min_p_N1: Tensor) -> Tensor:
    """True where a token is less probable than min_p times the largest."""
    probs_NV = torch.softmax(scaled_NV, dim=-1)
    floor_N1 = min_p_N1 * probs_NV.amax(dim=-1, keepdim=True)
    # The largest always stays, even if min_p is above 1 or rounded up.
    is_largest_NV = scaled_NV == scaled_NV.amax(dim=-1, keepdim=True)
    return (probs_NV < floor_N1) & ~is_largest_NV


def _keys(scaled_NV: Tensor) -> Tensor:
    """int32 keys in the order of the numbers. Minus zero becomes zero first."""
    bits_NV = (scaled_NV + 0.0).view(torch.int32)
    return bits_NV ^ ((bits_NV >> 31) & 0x7FFF_FFFF)


def _first_that_stays(key_NV: Tensor, weight_NV: Tensor, rest_N1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the smallest key such that the weights up to it are more than `rest`.

    Returns it, the weights at that key (0 elsewhere), and `rest` less the weights below it. Radix selection: each round
    sums the weights by one digit of the key. The cost depends on V only.
    """
    unsigned_NV = key_NV ^ -(2**31)
    limit_N1 = torch.full_like(rest_N1, -(2**31))
    for shift, num_values in _DIGITS:
        digit_NV = (unsigned_NV >> shift) & (num_values - 1)
        sums = torch.zeros((key_NV.shape[0], num_values), dtype=torch.int64, device=key_NV.device)
        up_to = sums.scatter_add_(1, digit_NV.long(), weight_NV).cumsum(dim=-1)

        # A row of NaN has no right digit, but the index must be valid.
        digit_N1 = torch.searchsorted(up_to, rest_N1, right=True).clamp_(max=num_values - 1)
        rest_N1 = rest_N1 - up_to.gather(1, digit_N1) + sums.gather(1, digit_N1)
        weight_NV = torch.where(digit_NV == digit_N1.int(), weight_NV, 0)
        limit_N1 = limit_N1 + (digit_N1 << shift)
    return limit_N1.int(), weight_NV, rest_N1


def _draw(masked_LV: Tensor, uniform_L: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds the row's uniform number."""
    cumulative_LV = torch.softmax(masked_LV, dim=-1).cumsum(dim=-1, dtype=torch.float64)
    total_L = cumulative_LV[:, -1]
    # Strictly below the total, so some token exceeds it. That token's probability is not zero.
    target_L = torch.minimum(uniform_L * total_L, torch.nextafter(total_L, torch.zeros_like(total_L)))
    drawn_L = torch.searchsorted(cumulative_LV, target_L[:, None], right=True)[:, 0]
    return drawn_L.clamp(max=masked_LV.shape[-1] - 1)
