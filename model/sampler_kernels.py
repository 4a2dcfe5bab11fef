"""The Triton kernels of sampler_triton.py: one draws all rows, one applies the masks of grammars.

A program draws one row. Rows without top-k and top-p read their logits twice and a little. The others read them two or
three times and collect candidates (sampler_passes.py). What follows reads those only: the searches for the least
logits that stay, and the draw.
Shapes: N lanes of a tile, D rows of a tile, V vocabulary.
"""

from typing import Any

import triton
import triton.language as tl

from model.sampler_passes import (
    NEG_INF,
    best_of,
    collect,
    id_behind,
    key_of,
    pick,
    scaled,
    search,
    share_of,
    sum_from,
    sum_row,
    uniform,
    value_of,
    weigh,
)

NOT_A_TOKEN = tl.constexpr(-1)  # see model/sampling_input.py
NOTHING_LEFT = tl.constexpr(-3)
LOWEST = tl.constexpr(-2139095041)  # the key of -inf


def _mask_row(
    row_ptr: tl.tensor,
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    best_N: tl.tensor,
    temperature: tl.tensor,
    largest: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    VOCAB: tl.constexpr,
    SCALE: tl.constexpr,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
) -> Any:
    """Collects the candidates of a row. Returns their number, the least logit that top-k and top-p keep, and the first
    id from which on they keep tokens with that logit."""
    end = key_of(largest) + 1
    cut = tl.full((), LOWEST, tl.int64)
    total = tl.full((), 0, tl.int64)
    least = tl.full((), NEG_INF, tl.float32)
    if (top_k > 0) & (top_k < VOCAB):
        # As many lanes have a logit from `least` on, so at least as many tokens have.
        if top_k <= LANES:
            tl.debug_barrier()
            tl.store(values_ptr + tl.arange(0, LANES), scaled(best_N, temperature))
            tl.debug_barrier()
            cut, _sum = search(values_ptr, LANES, top_k, cut, end, total, largest, True, SCALE, LANES)
            least = value_of(cut)
        num = collect(row_ptr, values_ptr, ids_ptr, temperature, least, VOCAB, DEPTH * LANES)
        need = tl.minimum(top_k, num)
        cut, _sum = search(values_ptr, num, need, cut, end, total, largest, True, SCALE, LANES)
        total = sum_from(values_ptr, num, value_of(cut), largest, SCALE, LANES)
        total_kept = total
    else:
        total, least = sum_row(row_ptr, temperature, largest, top_p, VOCAB, SCALE, DEPTH, LANES)
        cut = key_of(least)
        num = collect(row_ptr, values_ptr, ids_ptr, temperature, least, VOCAB, DEPTH * LANES)
        total_kept = sum_from(values_ptr, num, least, largest, SCALE, LANES)

    first = tl.full((), 0, tl.int32)
    if top_p < 1:
        need = share_of(total, top_p)
        cut, total_kept = search(values_ptr, num, need, cut, end, total_kept, largest, False, SCALE, LANES)
        num_dropped = (total_kept - need) // tl.maximum(weigh(value_of(cut), largest, 0.0, SCALE), 1)
        if num_dropped > 0:
            first = id_behind(values_ptr, ids_ptr, num, value_of(cut), num_dropped, LANES)
    return num, value_of(cut), first


mask_row: Any = triton.jit(_mask_row)


def _draw_row(
    logits_ptr: tl.tensor,
    temperature_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor,
    min_p_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    choice_ptr: tl.tensor,
    position_ptr: tl.tensor,
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    limits_ptr: tl.tensor,
    firsts_ptr: tl.tensor,
    room: tl.tensor,
    is_ruled: tl.tensor,
    VOCAB: tl.constexpr,
    SCALE: tl.constexpr,
    GREEDY_BELOW: tl.constexpr,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Program r draws row r. `room`: how many candidates of a row find room; 0: no row uses top-k or top-p.
    `is_ruled`: whether grammars rule any row.

    Writes the token, the least logit that top-k and top-p keep (divided by the temperature), and the first id from
    which on they keep tokens with that logit."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * VOCAB
    values_ptr += row * room
    ids_ptr += row * room
    temperature = tl.load(temperature_ptr + row)
    min_p = tl.load(min_p_ptr + row)

    best_DN, id_DN = best_of(row_ptr, VOCAB, DEPTH, LANES)
    has_nan = tl.sum(tl.sum((best_DN != best_DN).to(tl.int32), 0), 0) > 0
    best_N = tl.max(best_DN, 0)
    largest = tl.max(best_N, 0)
    token = tl.min(tl.min(tl.where(best_DN == largest, id_DN, VOCAB), 0), 0)
    limit = tl.full((), NEG_INF, tl.float32)
    first = tl.full((), 0, tl.int32)
    is_drawn = (temperature >= GREEDY_BELOW) & (largest - largest == 0) & (has_nan == 0)

    highest = scaled(largest, tl.where(temperature >= GREEDY_BELOW, temperature, 1.0))
    if is_drawn & (highest - highest == 0):  # a division that overflows leaves the greedy token
        noise = uniform(tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(position_ptr + row))
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        if (((top_k > 0) & (top_k < VOCAB)) | (top_p < 1)) & (room > 0):
            num, limit, first = mask_row(
                row_ptr, values_ptr, ids_ptr, best_N, temperature, highest, top_k, top_p, VOCAB, SCALE, DEPTH, LANES
            )
            token = pick(
                values_ptr, ids_ptr, num, temperature, highest, limit, first, min_p, noise,
                True, SCALE, DEPTH * LANES, BLOCKS,
            )  # fmt: skip
        else:
            token = pick(
                row_ptr, ids_ptr, VOCAB, temperature, highest, limit, first, min_p, noise,
                False, SCALE, DEPTH * LANES, BLOCKS,
            )  # fmt: skip

    # What stands for no token, in rows that have none to draw.
    token = tl.where((largest - largest != 0) | has_nan, NOT_A_TOKEN, token)
    is_empty = (largest == NEG_INF) & (has_nan == 0) & (is_ruled > 0)
    tl.store(tokens_ptr + row, tl.where(is_empty, NOTHING_LEFT, token).to(tl.int64))
    tl.store(limits_ptr + row, limit)
    tl.store(firsts_ptr + row, first)


def _allow(
    logits_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    words_ptr: tl.tensor,
    out_ptr: tl.tensor,
    num_ruled: tl.tensor,
    num_words: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Copies a block of a row, with -inf at the tokens that its grammar does not allow."""
    row = tl.program_id(0).to(tl.int64)
    mask = tl.full((), -1, tl.int64)  # the row's place among those that grammars rule
    for start in range(0, num_ruled, ROWS):
        at_N = start + tl.arange(0, ROWS)
        ruled_N = tl.load(rows_ptr + at_N, mask=at_N < num_ruled, other=-1)
        mask = tl.maximum(mask, tl.max(tl.where(ruled_N == row, at_N, -1), 0).to(tl.int64))

    id_N = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x_N = tl.load(logits_ptr + row * VOCAB + id_N, mask=id_N < VOCAB)
    word_N = tl.load(words_ptr + mask * num_words + id_N // 32, mask=(id_N < VOCAB) & (mask >= 0), other=-1)
    is_allowed_N = ((word_N >> (id_N % 32)) & 1) == 1
    tl.store(out_ptr + row * VOCAB + id_N, tl.where(is_allowed_N, x_N, NEG_INF), mask=id_N < VOCAB)


draw_kernel: Any = triton.jit(
    _draw_row,
    do_not_specialize=["room", "is_ruled"],
    do_not_specialize_on_alignment=[
        "temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "seed_ptr", "choice_ptr", "position_ptr",
    ],
)  # fmt: skip
allow_kernel: Any = triton.jit(
    _allow, do_not_specialize=["num_ruled", "num_words"], do_not_specialize_on_alignment=["rows_ptr", "words_ptr"]
)
