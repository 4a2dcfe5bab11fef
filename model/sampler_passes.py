"""The passes over a row of logits, or over its candidates, of which sampler_kernels.py is made, in Triton.

Candidates are all tokens of a row from some logit on, in the order of their ids: `values_ptr` and `ids_ptr`.
Thresholds are found among keys: integers in the order of the logits. A token's weight is an integer, exp(logit -
largest) times `SCALE`, so sums are exact in any order.
Shapes: N lanes of a tile, D rows of a tile, M thresholds that are tried at once, C blocks of a row, V vocabulary.
"""

from typing import Any

import triton
import triton.language as tl

NEG_INF = tl.constexpr(float("-inf"))
NUM_WAYS = tl.constexpr(8)  # thresholds that a round of a search tries; a round finds three bits of the key
MARGIN = tl.constexpr(1.001)  # float32 sums of a row are at least this exact
# Steps below the largest logit from which top-p may collect candidates
STEP_A, STEP_B, STEP_C = tl.constexpr(1.0), tl.constexpr(2.5), tl.constexpr(4.5)
STEP_D, STEP_E, STEP_F = tl.constexpr(7.0), tl.constexpr(10.0), tl.constexpr(15.0)
# splitmix64, as in model/sampler.py: the same constants as signed numbers
GAMMA = tl.constexpr(-7046029254386353131)
FIRST = tl.constexpr(-4658895280553007687)
SECOND = tl.constexpr(-7723592293110705685)


def _scaled(logit: tl.tensor, temperature: tl.tensor) -> Any:
    """Rounded as torch divides. Minus zero becomes zero."""
    return tl.div_rn(logit, temperature) + 0.0


def _key_of(x: tl.tensor) -> Any:
    """The int64 key of a number."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


def _value_of(key: tl.tensor) -> Any:
    """The number that has this key."""
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


def _weigh(x: tl.tensor, largest: tl.tensor, min_p: tl.tensor, SCALE: tl.constexpr) -> Any:
    """Weights, 0 below min_p times the largest's."""
    share = tl.exp(x - largest)
    share = tl.where((share < min_p) & (x < largest), 0.0, share)
    return (share * SCALE).to(tl.int64)


scaled: Any = triton.jit(_scaled)
key_of: Any = triton.jit(_key_of)
value_of: Any = triton.jit(_value_of)
weigh: Any = triton.jit(_weigh)


def _mix(x: tl.tensor) -> Any:
    """One step of splitmix64. `>>` keeps the sign, so the bits that it adds are cleared."""
    x += GAMMA
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


mix: Any = triton.jit(_mix)


def _uniform(seed: tl.tensor, choice: tl.tensor, position: tl.tensor) -> Any:
    """As `uniform` of model/sampler.py."""
    mixed = mix(mix(mix(seed) ^ choice) ^ position)
    return ((mixed >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) * (2.0**-53)


uniform: Any = triton.jit(_uniform)


def _best_of(row_ptr: tl.tensor, VOCAB: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr) -> Any:
    """The largest logit of each place of a tile, NaN if it has one; and the first id that has it."""
    at_DN = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    best_DN = tl.full((DEPTH, LANES), NEG_INF, tl.float32)
    id_DN = at_DN
    for start in range(0, VOCAB, DEPTH * LANES):
        x_DN = tl.load(row_ptr + start + at_DN, mask=start + at_DN < VOCAB, other=NEG_INF)
        id_DN = tl.where(x_DN > best_DN, start + at_DN, id_DN)
        best_DN = tl.maximum(best_DN, x_DN, propagate_nan=tl.PropagateNan.ALL)
    return best_DN, id_DN


best_of: Any = triton.jit(_best_of)


def _search(
    values_ptr: tl.tensor,
    num: tl.tensor,
    need: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    sum_low: tl.tensor,
    largest: tl.tensor,
    COUNTS: tl.constexpr,
    SCALE: tl.constexpr,
    LANES: tl.constexpr,
) -> Any:
    """The greatest key in [low, high) from which on the weights of the `num` values are at least `need`, and their sum.

    `COUNTS`: each value weighs 1. The weights from `low` on are `sum_low`, at least `need`; those from `high` on, less.
    """
    way_M = tl.arange(0, NUM_WAYS) + 1
    at_N = tl.arange(0, LANES)
    while high - low > 1:
        key_M = low + (((high - low) * way_M) // NUM_WAYS)
        value_M = value_of(key_M)
        sum_MN = tl.zeros((NUM_WAYS, LANES), tl.int64)
        for start in range(0, num, LANES):
            x_N = tl.load(values_ptr + start + at_N, mask=start + at_N < num, other=NEG_INF)
            if COUNTS:
                weight_N = (x_N > NEG_INF).to(tl.int64)
            else:
                weight_N = weigh(x_N, largest, 0.0, SCALE)
            sum_MN += tl.where(x_N[None, :] >= value_M[:, None], weight_N[None, :], 0)

        sum_M = tl.sum(sum_MN, 1)
        is_enough_M = sum_M >= need
        sum_low = tl.min(tl.where(is_enough_M, sum_M, sum_low), 0)
        low = tl.max(tl.where(is_enough_M, key_M, low), 0)
        high = tl.min(tl.where(is_enough_M, high, key_M), 0)
    return low, sum_low


search: Any = triton.jit(_search)


def _collect(
    row_ptr: tl.tensor,
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    temperature: tl.tensor,
    least: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:
    """Writes the finite logits from `least` on, divided by the temperature, and their ids. Returns their number."""
    tl.debug_barrier()  # threads may still read what was there
    num = tl.full((), 0, tl.int32)
    for start in range(0, VOCAB, BLOCK):
        id_N = start + tl.arange(0, BLOCK)
        x_N = scaled(tl.load(row_ptr + id_N, mask=id_N < VOCAB, other=NEG_INF), temperature)
        is_in_N = (x_N >= least) & (x_N > NEG_INF)
        to_N = num + tl.cumsum(is_in_N.to(tl.int32), 0) - 1
        tl.store(values_ptr + to_N, x_N, mask=is_in_N)
        tl.store(ids_ptr + to_N, id_N, mask=is_in_N)
        num += tl.sum(is_in_N.to(tl.int32), 0)
    tl.debug_barrier()  # threads read what others have written
    return num


collect: Any = triton.jit(_collect)


def _sum_from(
    values_ptr: tl.tensor,
    num: tl.tensor,
    least: tl.tensor,
    largest: tl.tensor,
    SCALE: tl.constexpr,
    LANES: tl.constexpr,
) -> Any:
    """The sum of the weights of the candidates from `least` on."""
    sum_N = tl.zeros((LANES,), tl.int64)
    for start in range(0, num, LANES):
        at_N = start + tl.arange(0, LANES)
        x_N = tl.load(values_ptr + at_N, mask=at_N < num, other=NEG_INF)
        sum_N += tl.where(x_N >= least, weigh(x_N, largest, 0.0, SCALE), 0)
    return tl.sum(sum_N, 0)


sum_from: Any = triton.jit(_sum_from)


def _sum_row(
    row_ptr: tl.tensor,
    temperature: tl.tensor,
    largest: tl.tensor,
    top_p: tl.tensor,
    VOCAB: tl.constexpr,
    SCALE: tl.constexpr,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
) -> Any:
    """The sum of a row's weights, and a logit from which on they are surely more than `top_p` of it: -inf if that is
    far below the largest."""
    at_DN = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    total_N = tl.zeros((LANES,), tl.int64)
    a_N = tl.zeros((LANES,), tl.float32)  # the sums from each step on
    b_N, c_N, d_N, e_N, f_N = a_N, a_N, a_N, a_N, a_N
    for start in range(0, VOCAB, DEPTH * LANES):
        logit_DN = tl.load(row_ptr + start + at_DN, mask=start + at_DN < VOCAB, other=NEG_INF)
        x_DN = scaled(logit_DN, temperature)
        share_DN = tl.exp(x_DN - largest)
        total_N += tl.sum((share_DN * SCALE).to(tl.int64), 0)
        a_N += tl.sum(tl.where(x_DN >= largest - STEP_A, share_DN, 0.0), 0)
        b_N += tl.sum(tl.where(x_DN >= largest - STEP_B, share_DN, 0.0), 0)
        c_N += tl.sum(tl.where(x_DN >= largest - STEP_C, share_DN, 0.0), 0)
        d_N += tl.sum(tl.where(x_DN >= largest - STEP_D, share_DN, 0.0), 0)
        e_N += tl.sum(tl.where(x_DN >= largest - STEP_E, share_DN, 0.0), 0)
        f_N += tl.sum(tl.where(x_DN >= largest - STEP_F, share_DN, 0.0), 0)

    total = tl.sum(total_N, 0)
    need = total.to(tl.float32) / SCALE * top_p * MARGIN
    least = tl.where(tl.sum(f_N, 0) >= need, largest - STEP_F, NEG_INF)
    least = tl.where(tl.sum(e_N, 0) >= need, largest - STEP_E, least)
    least = tl.where(tl.sum(d_N, 0) >= need, largest - STEP_D, least)
    least = tl.where(tl.sum(c_N, 0) >= need, largest - STEP_C, least)
    least = tl.where(tl.sum(b_N, 0) >= need, largest - STEP_B, least)
    return total, tl.where(tl.sum(a_N, 0) >= need, largest - STEP_A, least)


sum_row: Any = triton.jit(_sum_row)


def _share_of(total: tl.tensor, top_p: tl.tensor) -> Any:
    """The weight that top-p keeps at least."""
    return tl.maximum(tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)


share_of: Any = triton.jit(_share_of)


def _id_behind(
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    num: tl.tensor,
    value: tl.tensor,
    num_before: tl.tensor,
    LANES: tl.constexpr,
) -> Any:
    """Of the candidates that equal `value`, the id of the one behind the first `num_before`."""
    seen = tl.full((), 0, tl.int64)
    token_id = tl.full((), 0, tl.int32)
    for start in range(0, num, LANES):
        at_N = start + tl.arange(0, LANES)
        x_N = tl.load(values_ptr + at_N, mask=at_N < num, other=NEG_INF)
        id_N = tl.load(ids_ptr + at_N, mask=at_N < num, other=0)
        equals_N = (x_N == value).to(tl.int32)
        is_next_N = (equals_N > 0) & (seen + tl.cumsum(equals_N, 0) == num_before + 1)
        token_id += tl.sum(tl.where(is_next_N, id_N, 0), 0)
        seen += tl.sum(equals_N, 0)
    return token_id


id_behind: Any = triton.jit(_id_behind)


def _kept(
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    at_N: tl.tensor,
    num: tl.tensor,
    temperature: tl.tensor,
    largest: tl.tensor,
    limit: tl.tensor,
    first: tl.tensor,
    min_p: tl.tensor,
    COLLECTED: tl.constexpr,
    SCALE: tl.constexpr,
) -> Any:
    """Weights, 0 where a mask excludes the token; and ids. `COLLECTED`: of candidates; else of a row's logits."""
    x_N = tl.load(values_ptr + at_N, mask=at_N < num, other=NEG_INF)
    if COLLECTED:
        id_N = tl.load(ids_ptr + at_N, mask=at_N < num, other=0x7FFFFFFF)
        is_kept_N = (x_N > limit) | ((x_N == limit) & (id_N >= first))
        return tl.where(is_kept_N, weigh(x_N, largest, min_p, SCALE), 0), id_N
    else:
        return weigh(scaled(x_N, temperature), largest, min_p, SCALE), at_N


kept: Any = triton.jit(_kept)


def _pick(
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    num: tl.tensor,
    temperature: tl.tensor,
    largest: tl.tensor,
    limit: tl.tensor,
    first: tl.tensor,
    min_p: tl.tensor,
    noise: tl.tensor,
    COLLECTED: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> Any:
    """The first token, by id, up to which the weights are more than `noise` of them all."""
    at_N = tl.arange(0, BLOCK)
    block_C = tl.arange(0, BLOCKS)
    sum_C = tl.zeros((BLOCKS,), tl.int64)
    for block in range(tl.cdiv(num, BLOCK)):
        weight_N, _id_N = kept(
            values_ptr, ids_ptr, block * BLOCK + at_N, num, temperature, largest, limit, first, min_p, COLLECTED, SCALE
        )
        sum_C = tl.where(block_C == block, tl.sum(weight_N, 0), sum_C)

    # The block in which it is, then the token in that block.
    total = tl.sum(sum_C, 0)
    target = tl.minimum((noise * total.to(tl.float64)).to(tl.int64), total - 1)
    chosen = tl.sum((tl.cumsum(sum_C, 0) <= target).to(tl.int32), 0)
    before = tl.sum(tl.where(block_C < chosen, sum_C, 0), 0)
    weight_N, id_N = kept(
        values_ptr, ids_ptr, chosen * BLOCK + at_N, num, temperature, largest, limit, first, min_p, COLLECTED, SCALE
    )
    return tl.min(tl.where(before + tl.cumsum(weight_N, 0) > target, id_N, 0x7FFFFFFF), 0)


pick: Any = triton.jit(_pick)
