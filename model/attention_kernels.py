"""The Triton kernels of attention_triton.py.

Page numbers and offsets into KV are int64: a layer may have more than 2^31 numbers. A page is contiguous: the K of its
tokens, then their V, each `TOKEN_SIZE` = K * D numbers. A sink is a score that joins the weights when all others are
known; it is no power of two yet.
Shapes: H query heads, K kv heads, G = H / K, D head_dim, M rows of a tile, N tokens of a kv step, S splits and C heads
that are combined at once.
"""

from typing import Any

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


def _attend_context(
    largest_M: tl.tensor,
    total_M: tl.tensor,
    sum_MD: tl.tensor,
    q_MD: tl.tensor,
    position_M: tl.tensor,
    kv_ptr: tl.tensor,
    pages_ptr: tl.tensor,
    kv_head: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    lowest: tl.tensor,
    tree_start: tl.tensor,
    tree_bits: tl.tensor,
    TOKEN_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    STEP: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TREE: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
) -> Any:
    """Attends to tokens [begin, end), but with TREE only to those that the tree mask shows, and with WINDOW each row to
    the last `window` of its context, of which none lies before `lowest`. The others are not read.

    It goes on from each row's largest score, sum of weights, and weighted sum of V, and returns them. A score is the
    product of q and k; a weight is two to the power of a score times `scale`. If no token is seen, the largest score is
    -1e30: beside other splits these sums count for nothing. Without MASKED there are whole steps only, and every row
    sees every token. A mask that hides nothing changes no bit.
    """
    dim_D = tl.arange(0, PADDED_DIM)
    is_dim_D = dim_D < HEAD_DIM

    for start in range(begin, end, STEP):
        token_N = start + tl.arange(0, STEP)
        is_token_N = token_N < end
        if TREE:
            behind_N = token_N - tree_start
            bit_N = (tree_bits >> tl.minimum(tl.maximum(behind_N, 0), 63)) & 1
            is_token_N = is_token_N & ((behind_N < 0) | ((behind_N < 64) & (bit_N == 1)))
        if WINDOW:
            is_token_N = is_token_N & (token_N >= lowest)
        if MASKED:
            page_N = tl.load(pages_ptr + token_N // PAGE_SIZE, mask=is_token_N, other=0)
            kv_mask_ND = is_token_N[:, None] & is_dim_D[None, :]
        else:
            page_N = tl.load(pages_ptr + token_N // PAGE_SIZE)
            kv_mask_ND = is_dim_D[None, :]
        k_offsets_N = (page_N * 2 * PAGE_SIZE + token_N % PAGE_SIZE) * TOKEN_SIZE + kv_head * HEAD_DIM
        k_pointers_ND = kv_ptr + k_offsets_N[:, None] + dim_D[None, :]
        k_ND = tl.load(k_pointers_ND, mask=kv_mask_ND, other=0.0)
        v_ND = tl.load(k_pointers_ND + PAGE_SIZE * TOKEN_SIZE, mask=kv_mask_ND, other=0.0)

        scores_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee")
        if MASKED:
            is_seen_MN = (token_N[None, :] <= position_M[:, None]) & is_token_N[None, :]
            if WINDOW:
                is_seen_MN = is_seen_MN & (token_N[None, :] > position_M[:, None] - window)
            scores_MN = tl.where(is_seen_MN, scores_MN, -1e30)

        # Rescale the earlier sums to the new largest score.
        new_largest_M = tl.maximum(largest_M, tl.max(scores_MN, 1))
        shrink_M = tl.exp2((largest_M - new_largest_M) * scale)
        weights_MN = tl.exp2((scores_MN - new_largest_M[:, None]) * scale)
        total_M = total_M * shrink_M + tl.sum(weights_MN, 1)
        sum_MD = sum_MD * shrink_M[:, None] + tl.dot(weights_MN.to(v_ND.dtype), v_ND, input_precision="ieee")
        largest_M = new_largest_M
    return largest_M, total_M, sum_MD


_attended: Any = triton.jit(_attend_context)


def _join_sinks(total_M: tl.tensor, sum_MD: tl.tensor, largest_M: tl.tensor, sink_M: tl.tensor) -> Any:
    """The sums with the sinks. The largest scores and the sinks are powers of two."""
    high_M = tl.maximum(largest_M, sink_M)
    shrink_M = tl.exp2(largest_M - high_M)
    return total_M * shrink_M + tl.exp2(sink_M - high_M), sum_MD * shrink_M[:, None]


_joined: Any = triton.jit(_join_sinks)


def _attend_tile(
    q_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    out_ptr: tl.tensor,
    tiles_ptr: tl.tensor,
    page_table_ptr: tl.tensor,
    sinks_ptr: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    table_stride: tl.tensor,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
) -> None:
    """Attends for one tile: query rows (tokens times the query heads of a kv head) against the request's pages.

    The last tiles come first: those of a long prompt take longest. Without WINDOW and SINKS, `window` and `sinks_ptr`
    are not read. Steps begin at multiples of STEP, so that a row has the same sums in any tile.
    """
    tile = tiles_ptr + (tl.num_programs(0) - 1 - tl.program_id(0)) * 4
    kv_head = tl.program_id(1)
    request = tl.load(tile)
    first_token = tl.load(tile + 1)
    num_tokens = tl.load(tile + 2).to(tl.int32)
    first_position = tl.load(tile + 3).to(tl.int32)

    row_M = tl.arange(0, ROWS)
    dim_D = tl.arange(0, PADDED_DIM)
    head_M = kv_head * GROUPS + row_M % GROUPS
    q_offsets_MD = ((first_token + row_M // GROUPS) * HEADS + head_M)[:, None] * HEAD_DIM + dim_D[None, :]
    mask_MD = (row_M < num_tokens * GROUPS)[:, None] & (dim_D < HEAD_DIM)[None, :]
    q_MD = tl.load(q_ptr + q_offsets_MD, mask=mask_MD, other=0.0)
    position_M = first_position + row_M // GROUPS

    pages_ptr = page_table_ptr + request * table_stride
    end = first_position + num_tokens  # the context of the tile's last token
    seen_by_all = (first_position + 1) // STEP * STEP  # whole steps up to the tile's first token
    begin = 0  # of whole steps that every row sees
    largest_M = tl.full((ROWS,), -1e30, tl.float32)
    total_M = tl.zeros((ROWS,), tl.float32)
    sum_MD = tl.zeros((ROWS, PADDED_DIM), tl.float32)
    lowest = first_position * 0
    if WINDOW:
        lowest = tl.maximum(first_position + 1 - window, 0)
        begin = tl.minimum((tl.maximum(end - window, 0) + STEP - 1) // STEP * STEP, seen_by_all)
        largest_M, total_M, sum_MD = _attended(
            largest_M, total_M, sum_MD, q_MD, position_M, kv_ptr, pages_ptr, kv_head, lowest // STEP * STEP, begin,
            scale, window, lowest, 0, 0, HEADS // GROUPS * HEAD_DIM, HEAD_DIM, PAGE_SIZE, STEP, PADDED_DIM,
            False, True, True,
        )  # fmt: skip
    largest_M, total_M, sum_MD = _attended(
        largest_M, total_M, sum_MD, q_MD, position_M, kv_ptr, pages_ptr, kv_head, begin, seen_by_all, scale, window,
        lowest, 0, 0, HEADS // GROUPS * HEAD_DIM, HEAD_DIM, PAGE_SIZE, STEP, PADDED_DIM, False, False, False,
    )  # fmt: skip
    largest_M, total_M, sum_MD = _attended(
        largest_M, total_M, sum_MD, q_MD, position_M, kv_ptr, pages_ptr, kv_head, seen_by_all, end, scale, window,
        lowest, 0, 0, HEADS // GROUPS * HEAD_DIM, HEAD_DIM, PAGE_SIZE, STEP, PADDED_DIM, False, True, WINDOW,
    )  # fmt: skip
    if SINKS:
        sink_M = tl.load(sinks_ptr + head_M) * LOG2_E
        total_M, sum_MD = _joined(total_M, sum_MD, largest_M * scale, sink_M)

    # Every real row sees itself, so its total is at least one weight.
    out_MD = sum_MD / tl.where(total_M > 0, total_M, 1.0)[:, None]
    tl.store(out_ptr + q_offsets_MD, out_MD.to(out_ptr.dtype.element_ty), mask=mask_MD)


def _number_splits(
    seq_lens_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    first_request: tl.tensor,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program r writes where the splits of decode r begin and end, and that they belong to r."""
    row = tl.program_id(0)
    seq_lens_ptr += first_request
    before = tl.zeros((BLOCK,), tl.int64)
    for at in range(0, row, BLOCK):
        index = at + tl.arange(0, BLOCK)
        context = tl.load(seq_lens_ptr + index, mask=index < row, other=0)
        before += (context + SPLIT - 1) // SPLIT
    start = tl.sum(before, 0)
    end = start + (tl.load(seq_lens_ptr + row) + SPLIT - 1) // SPLIT
    tl.store(starts_ptr, 0, mask=row == 0)
    tl.store(starts_ptr + row + 1, end)
    for at in range(start, end, BLOCK):
        split = at + tl.arange(0, BLOCK)
        tl.store(rows_ptr + split, tl.zeros((BLOCK,), tl.int32) + row, mask=split < end)


def _attend_splits(
    q_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    tree_starts_ptr: tl.tensor,
    tree_bits_ptr: tl.tensor,
    firsts_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    page_table_ptr: tl.tensor,
    scale: tl.tensor,
    num_decodes: tl.tensor,
    first_request: tl.tensor,
    first_token: tl.tensor,
    table_stride: tl.tensor,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    STEP: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TREE: tl.constexpr,
    WINDOW: tl.constexpr,
) -> None:
    """Program (kv_head, p) attends to splits p, p + P, ... for one kv head. Every program computes a split alike.

    Without TREE, `tree_starts_ptr` and `tree_bits_ptr` are not read. With WINDOW the splits of a decode begin at the
    first token that it sees, `firsts_ptr`.
    """
    kv_head = tl.program_id(0)
    num_splits = tl.load(starts_ptr + num_decodes).to(tl.int32)
    row_M = tl.arange(0, ROWS)
    dim_D = tl.arange(0, PADDED_DIM)
    head_M = (kv_head * GROUPS + row_M).to(tl.int64)
    is_row_M = row_M < GROUPS
    mask_MD = is_row_M[:, None] & (dim_D < HEAD_DIM)[None, :]

    for split in range(tl.program_id(1), num_splits, tl.num_programs(1)):
        row = tl.load(rows_ptr + split)
        context = tl.load(seq_lens_ptr + first_request + row).to(tl.int32)
        begin = (split - tl.load(starts_ptr + row).to(tl.int32)) * SPLIT
        if WINDOW:
            begin += tl.load(firsts_ptr + first_request + row).to(tl.int32)
        end = tl.minimum(begin + SPLIT, context)
        tree_start, tree_bits = context.to(tl.int64), context.to(tl.int64)
        if TREE:
            tree_start = tl.load(tree_starts_ptr + first_request + row)
            tree_bits = tl.load(tree_bits_ptr + first_request + row)

        q_offsets_MD = ((first_token + row) * HEADS + head_M)[:, None] * HEAD_DIM + dim_D[None, :]
        q_MD = tl.load(q_ptr + q_offsets_MD, mask=mask_MD, other=0.0)
        position_M = tl.zeros((ROWS,), tl.int32) + context - 1
        pages_ptr = page_table_ptr + (first_request + row).to(tl.int64) * table_stride
        largest_M = tl.full((ROWS,), -1e30, tl.float32)
        total_M = tl.zeros((ROWS,), tl.float32)
        sum_MD = tl.zeros((ROWS, PADDED_DIM), tl.float32)
        largest_M, total_M, sum_MD = _attended(
            largest_M, total_M, sum_MD, q_MD, position_M, kv_ptr, pages_ptr, kv_head, begin, end, scale, 0, 0,
            tree_start, tree_bits, HEADS // GROUPS * HEAD_DIM, HEAD_DIM, PAGE_SIZE, STEP, PADDED_DIM, TREE, True, False,
        )  # fmt: skip

        heads_M = split * HEADS + head_M
        tl.store(scales_ptr + heads_M * 2, largest_M * scale, mask=is_row_M)
        tl.store(scales_ptr + heads_M * 2 + 1, total_M, mask=is_row_M)
        tl.store(sums_ptr + heads_M[:, None] * HEAD_DIM + dim_D[None, :], sum_MD, mask=mask_MD)


def _combine_splits(
    sums_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    sinks_ptr: tl.tensor,
    out_ptr: tl.tensor,
    first_token: tl.tensor,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    COMBINED: tl.constexpr,
    COMBINED_HEADS: tl.constexpr,
    SINKS: tl.constexpr,
) -> None:
    """Program (r, c) adds up the splits of decode r in their order, `COMBINED` at a time, for `COMBINED_HEADS` heads.
    The largest scores of splits are powers of two here. Without SINKS, `sinks_ptr` is not read."""
    row = tl.program_id(0)
    head_C = tl.program_id(1) * COMBINED_HEADS + tl.arange(0, COMBINED_HEADS)
    dim_D = tl.arange(0, PADDED_DIM)
    at_CD = head_C[:, None] * HEAD_DIM + dim_D[None, :]
    mask_CD = (head_C < HEADS)[:, None] & (dim_D < HEAD_DIM)[None, :]
    end = tl.load(starts_ptr + row + 1)
    largest_C = tl.full((COMBINED_HEADS,), -1e30, tl.float32)
    total_C = tl.zeros((COMBINED_HEADS,), tl.float32)
    sum_CD = tl.zeros((COMBINED_HEADS, PADDED_DIM), tl.float32)

    for start in range(tl.load(starts_ptr + row), end, COMBINED):
        split_S = start + tl.arange(0, COMBINED)
        is_split_S = split_S < end
        at_SC = split_S[:, None] * HEADS + head_C[None, :]
        mask_SC = is_split_S[:, None] & (head_C < HEADS)[None, :]
        largest_SC = tl.load(scales_ptr + at_SC * 2, mask=mask_SC, other=-1e30)
        total_SC = tl.load(scales_ptr + at_SC * 2 + 1, mask=mask_SC, other=0.0)
        at_SCD = (split_S * HEADS * HEAD_DIM)[:, None, None] + at_CD[None, :, :]
        sum_SCD = tl.load(sums_ptr + at_SCD, mask=is_split_S[:, None, None] & mask_CD[None, :, :], other=0.0)

        new_largest_C = tl.maximum(largest_C, tl.max(largest_SC, 0))
        shrink_C = tl.exp2(largest_C - new_largest_C)
        weight_SC = tl.exp2(largest_SC - new_largest_C[None, :])
        total_C = total_C * shrink_C + tl.sum(total_SC * weight_SC, 0)
        sum_CD = sum_CD * shrink_C[:, None] + tl.sum(sum_SCD * weight_SC[:, :, None], 0)
        largest_C = new_largest_C

    if SINKS:
        sink_C = tl.load(sinks_ptr + head_C, mask=head_C < HEADS, other=0.0) * LOG2_E
        total_C, sum_CD = _joined(total_C, sum_CD, largest_C, sink_C)

    # Heads behind the last one have no weight, and are not written.
    out_CD = sum_CD / tl.where(total_C > 0, total_C, 1.0)[:, None]
    out_at_CD = (first_token + row).to(tl.int64) * HEADS * HEAD_DIM + at_CD
    tl.store(out_ptr + out_at_CD, out_CD.to(out_ptr.dtype.element_ty), mask=mask_CD)


# These numbers and addresses change while a worker serves. Without this, Triton would compile again for 1 and for
# multiples of 16, which takes seconds.
tiles_kernel: Any = triton.jit(_attend_tile, do_not_specialize=["table_stride"])  # a model's windows are few
number_kernel: Any = triton.jit(
    _number_splits, do_not_specialize=["first_request"], do_not_specialize_on_alignment=["seq_lens_ptr"]
)
splits_kernel: Any = triton.jit(
    _attend_splits,
    do_not_specialize=["num_decodes", "first_request", "first_token", "table_stride"],
    do_not_specialize_on_alignment=["seq_lens_ptr", "tree_starts_ptr", "tree_bits_ptr", "firsts_ptr"],
)
combine_kernel: Any = triton.jit(_combine_splits, do_not_specialize=["first_token"])
