"""Paged attention on a GPU as one Triton kernel, launched once for chunks of prompts and once for decodes.

A program computes a tile of query rows (tokens times the query heads that share a kv head) against the pages of one
request, with a running softmax (Milakov and Gimelshein 2018). A request's result does not depend on its neighbours: the
order of additions depends on its own context only. What it does not know: how KV got there.
Shapes: T tokens, H query heads, K kv heads, G = H / K, D head_dim, M rows of a tile, N tokens of a kv step.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.inputs import ModelInput
from protocol.kv_layout import KvLayout

KV_STEP_BYTES: Final = 16 << 10  # K (or V) that a program holds per step, within every GPU's shared memory
EXTEND_ROWS: Final = 64  # query rows of a tile of a chunk
MIN_ROWS: Final = 16  # the smallest matrix that the tensor cores take


@dataclass(frozen=True)
class _Tiles:
    """Tiles of one launch: (request, first token in T, tokens, position of the first token), int64 on the device."""

    table_X4: Tensor
    rows: int  # M


@dataclass(frozen=True)
class TritonPlan:
    """What every layer of one forward needs."""

    page_table_BP: Tensor
    launches: tuple[_Tiles, ...]


class TritonAttention:
    """One kernel, two launch shapes. Works for every page size, head size up to 256, and dtype."""

    def __init__(self, num_heads: int, num_kv_heads: int) -> None:
        self.groups = num_heads // num_kv_heads

    def plan(self, inp: ModelInput, layout: KvLayout) -> TritonPlan:
        """Tiles of chunks from host lengths; tiles of decodes from device lengths, so that nothing is read back."""
        device = inp.positions_T.device
        launches = []
        tokens_per_tile = max(1, EXTEND_ROWS // self.groups)
        tiles = extend_tiles(inp.extend_lens, inp.extend_seq_lens, tokens_per_tile)
        if tiles:
            table_X4 = torch.tensor(tiles, dtype=torch.int64).to(device, non_blocking=True)
            launches.append(_Tiles(table_X4, _rows(tokens_per_tile * self.groups)))
        if inp.num_decodes:
            num_extends = len(inp.extend_lens)
            index_D = torch.arange(inp.num_decodes, dtype=torch.int64, device=device)
            positions_D = inp.seq_lens_B[num_extends : num_extends + inp.num_decodes] - 1
            columns = (index_D + num_extends, index_D + sum(inp.extend_lens), torch.ones_like(index_D), positions_D)
            launches.append(_Tiles(torch.stack(columns, dim=1), _rows(self.groups)))
        return TritonPlan(inp.page_table_BP.contiguous(), tuple(launches))

    def attend(self, q_THD: Tensor, kv_layer: Tensor, plan: TritonPlan) -> Tensor:
        """(T, H, D): softmax(q k / sqrt(D)) v over each token's own context."""
        q_THD = q_THD.contiguous()
        out_THD = torch.empty_like(q_THD)
        _, num_heads, head_dim = q_THD.shape
        padded_dim = max(MIN_ROWS, int(triton.next_power_of_2(head_dim)))
        for tiles in plan.launches:
            _kernel[(tiles.table_X4.shape[0], num_heads // self.groups)](
                q_THD,
                kv_layer,
                out_THD,
                tiles.table_X4,
                plan.page_table_BP,
                head_dim**-0.5,
                plan.page_table_BP.stride(0),
                kv_layer.stride(0),
                kv_layer.stride(1),
                kv_layer.stride(2),
                HEADS=num_heads,
                GROUPS=self.groups,
                HEAD_DIM=head_dim,
                PAGE_SIZE=kv_layer.shape[2],
                ROWS=tiles.rows,
                STEP=max(MIN_ROWS, min(64, KV_STEP_BYTES // (padded_dim * q_THD.element_size()))),
                PADDED_DIM=padded_dim,
            )
        return out_THD


def extend_tiles(
    extend_lens: tuple[int, ...], extend_seq_lens: tuple[int, ...], tokens_per_tile: int
) -> list[tuple[int, int, int, int]]:
    """(request, first token in T, tokens, position of the first token) of every tile of every chunk."""
    tiles: list[tuple[int, int, int, int]] = []
    start = 0
    for request, (length, seq_len) in enumerate(zip(extend_lens, extend_seq_lens, strict=True)):
        first_position = seq_len - length
        tiles += [
            (request, start + done, min(tokens_per_tile, length - done), first_position + done)
            for done in range(0, length, tokens_per_tile)
        ]
        start += length
    return tiles


def _rows(rows: int) -> int:
    return max(MIN_ROWS, int(triton.next_power_of_2(rows)))


def _attend_tile(
    q_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    out_ptr: tl.tensor,
    tiles_ptr: tl.tensor,
    page_table_ptr: tl.tensor,
    scale: tl.tensor,
    table_stride: tl.tensor,
    page_stride: tl.tensor,
    side_stride: tl.tensor,
    token_stride: tl.tensor,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    PADDED_DIM: tl.constexpr,
) -> None:
    tile = tiles_ptr + tl.program_id(0) * 4
    kv_head = tl.program_id(1)
    request = tl.load(tile)
    first_token = tl.load(tile + 1)
    num_tokens = tl.load(tile + 2)
    first_position = tl.load(tile + 3)

    row_M = tl.arange(0, ROWS)
    dim_D = tl.arange(0, PADDED_DIM)
    is_row_M = row_M < num_tokens * GROUPS
    is_dim_D = dim_D < HEAD_DIM
    head_M = kv_head * GROUPS + row_M % GROUPS
    q_offsets_MD = ((first_token + row_M // GROUPS) * HEADS + head_M)[:, None] * HEAD_DIM + dim_D[None, :]
    mask_MD = is_row_M[:, None] & is_dim_D[None, :]
    q_MD = tl.load(q_ptr + q_offsets_MD, mask=mask_MD, other=0.0)
    position_M = first_position + row_M // GROUPS

    largest_M = tl.full((ROWS,), -1e30, tl.float32)
    total_M = tl.zeros((ROWS,), tl.float32)
    sum_MD = tl.zeros((ROWS, PADDED_DIM), tl.float32)
    context = first_position + num_tokens  # of the tile's last token
    for start in range(0, context, STEP):
        token_N = start + tl.arange(0, STEP)
        is_token_N = token_N < context
        page_N = tl.load(page_table_ptr + request * table_stride + token_N // PAGE_SIZE, mask=is_token_N, other=0)
        k_offsets_N = page_N * page_stride + (token_N % PAGE_SIZE) * token_stride + kv_head * HEAD_DIM
        kv_mask_ND = is_token_N[:, None] & is_dim_D[None, :]
        k_pointers_ND = kv_ptr + k_offsets_N[:, None] + dim_D[None, :]
        k_ND = tl.load(k_pointers_ND, mask=kv_mask_ND, other=0.0)
        v_ND = tl.load(k_pointers_ND + side_stride, mask=kv_mask_ND, other=0.0)
        scores_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee") * scale
        scores_MN = tl.where(token_N[None, :] <= position_M[:, None], scores_MN, -1e30)
        new_largest_M = tl.maximum(largest_M, tl.max(scores_MN, 1))
        shrink_M = tl.exp(largest_M - new_largest_M)
        weights_MN = tl.exp(scores_MN - new_largest_M[:, None])
        total_M = total_M * shrink_M + tl.sum(weights_MN, 1)
        sum_MD = sum_MD * shrink_M[:, None] + tl.dot(weights_MN.to(v_ND.dtype), v_ND, input_precision="ieee")
        largest_M = new_largest_M
    # Token 0 is within every row's context, so a row that is wanted has a total of at least one weight.
    out_MD = sum_MD / tl.where(total_M > 0, total_M, 1.0)[:, None]
    tl.store(out_ptr + q_offsets_MD, out_MD.to(out_ptr.dtype.element_ty), mask=mask_MD)


# Page tables change their width while a worker serves: a kernel compiled for one width would stop it for seconds.
_kernel = triton.jit(_attend_tile, do_not_specialize=["table_stride"])
