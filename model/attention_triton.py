"""Paged attention on a GPU in Triton: one kernel for chunks of prompts, three small ones for decodes.

A decode's context is cut into splits of `SPLIT` tokens. Programs attend to splits, and a second kernel adds up each
request's splits in order. So one long request uses the whole device. The splits and the order of additions depend on
the request's own context only. So its result is the same, bit for bit, in every batch. In a layer with a window the
splits begin at the first token that the decode sees.

    decodes   number the splits -> attend to each split -> combine (running softmax, Milakov and Gimelshein 2018;
              splits combined by log-sum-exp, as in Flash-Decoding, Dao et al. 2023)

The kernels are in attention_kernels.py.
Shapes: T tokens, B requests, R decodes of a launch, X tiles or splits, H query heads, D head_dim, M rows of a tile.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from model.attention_kernels import combine_kernel, number_kernel, splits_kernel, tiles_kernel
from model.inputs import TREE_SLOTS, ModelInput
from model.scoring import PLAIN, Scoring
from protocol.kv_layout import LayerLayout

MIN_ROWS: Final = 16  # the smallest matrix that the tensor cores take
SPLIT: Final = 256  # tokens of a decode's context that make one split; a multiple of every kv step
STEP_HEAD_BYTES: Final = 256  # of the heads that steps are given for: 128 numbers of two bytes
SCRATCH_BYTES: Final = 256 << 20  # of partial results; longer contexts or larger batches take several launches
SCRATCH_ROWS: Final = 512  # more decodes in one launch are not faster
LARGE_SHARED: Final = 160 << 10  # bytes of shared memory of a multiprocessor: an A100 and later ones of its class


@dataclass(frozen=True)
class Sizes:
    """How much a program takes at once, and how its kernel is compiled. They change speed only, but for the last bits:
    those depend on the steps, and on the splits combined at once.

    A step is in tokens, for heads of STEP_HEAD_BYTES: larger heads take shorter steps.
    """

    tile_rows: int = 64  # query rows of a tile of a chunk
    tile_step: int = 64
    tile_warps: int = 4
    tile_stages: int = 3
    split_step: int = 64
    split_warps: int = 4
    split_stages: int = 3
    programs_per_sm: int = 4  # that attend to splits
    combined: int = 16  # splits that are combined at once
    combined_heads: int = 1  # of a program
    combined_warps: int = 4


SMALL: Final = Sizes()  # fit into every GPU's shared memory
LARGE: Final = Sizes(
    tile_rows=128, split_stages=2, combined_warps=1
)  # for GPUs with LARGE_SHARED: the fastest on an H200
FLOAT32: Final = Sizes(tile_rows=32)  # larger tiles do not fit into a GPU's registers


@dataclass(frozen=True)
class _Tiles:
    """Tiles of chunks: (request, first token in T, tokens, position of the first token), int64 on the device."""

    table_X4: Tensor
    rows: int  # M


@dataclass(frozen=True)
class _Decodes:
    """Decodes [first_request, first_request + R) of the batch, which one launch takes, and their splits."""

    first_request: int
    first_token: int  # in T
    starts_R: Tensor  # R + 1 entries: the first split of each decode, then the number of splits
    row_X: Tensor  # the decode of each split; longer than the number of splits


@dataclass(frozen=True)
class TritonPlan:
    """The plan of one forward."""

    page_table_BP: Tensor
    seq_lens_B: Tensor
    tree_mask: tuple[Tensor, Tensor] | None  # starts and bits (B,); those of chunks are not read
    tiles: _Tiles | None
    decodes: tuple[_Decodes, ...]
    firsts_B: Tensor | None = None  # the first token that a decode sees, with a window; those of chunks are not read


class TritonAttention:
    """Works for every page size, every dtype, and head sizes up to 256.

    It allocates the memory for partial results at once, before the worker counts the memory left for KV.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_context: int,
        device: torch.device,
        sizes: Sizes | None = None,
    ) -> None:
        """`max_context` is a decode's longest context in tokens. `sizes`: None: those for the device."""
        self.sizes = sizes or sizes_for(device)
        self.groups = num_heads // num_kv_heads
        split_bytes = num_heads * (head_dim + 2) * 4
        longest = max(1, -(-max_context // SPLIT))
        self.max_splits = max(longest, min(SCRATCH_BYTES // split_bytes, SCRATCH_ROWS * longest))  # in one launch
        self._sums_XHD = torch.empty((self.max_splits, num_heads, head_dim), dtype=torch.float32, device=device)
        self._scales_XH2 = torch.empty((self.max_splits, num_heads, 2), dtype=torch.float32, device=device)
        is_cuda = device.type == "cuda"
        num_sms = torch.cuda.get_device_properties(device).multi_processor_count if is_cuda else 1
        self.num_programs = max(1, self.sizes.programs_per_sm * num_sms // num_kv_heads)  # for each kv head

    def longest_at_once(self, num_decodes: int) -> int:
        """See AttentionBackend: the scratch memory holds the splits of so many contexts of this length."""
        return self.max_splits // max(1, num_decodes) * SPLIT

    def plan(self, inp: ModelInput, layout: LayerLayout, window: int = 0) -> TritonPlan:
        """Makes tiles of chunks from host lengths, and splits of decodes from device lengths. Reads nothing back."""
        device = inp.positions_T.device
        sizes = FLOAT32 if layout.dtype == "float32" else self.sizes
        tokens_per_tile = max(1, sizes.tile_rows // self.groups)
        table = extend_tiles(inp.extend_lens, inp.extend_seq_lens, tokens_per_tile)
        tiles = None
        if table:
            # Pinned, because copying a long table from other memory would wait for the forward in flight.
            host_X4 = torch.tensor(table, dtype=torch.int64, pin_memory=device.type == "cuda")
            tiles = _Tiles(host_X4.to(device, non_blocking=True), _rows(tokens_per_tile * self.groups))

        # Each launch takes as many decodes as fit into the scratch memory, even if all contexts are the longest.
        num_extends, first_token = len(inp.extend_lens), sum(inp.extend_lens)
        most, seen_B, firsts_B = inp.max_decode_seq_len, inp.seq_lens_B, None
        if window:
            firsts_D = (inp.positions_T[first_token:] + 1 - window).clamp(min=0)
            firsts_B = F.pad(firsts_D, (num_extends, 0))
            most, seen_B = min(most, window + TREE_SLOTS), seen_B - firsts_B
        longest = max(1, -(-most // SPLIT))
        assert longest <= self.max_splits, f"a context of {most} tokens is longer than max_context"
        at_once = self.max_splits // longest
        decodes = tuple(
            _numbered(seen_B, num_extends + done, first_token + done, count, longest)
            for done in range(0, inp.num_decodes, at_once)
            for count in (min(at_once, inp.num_decodes - done),)
        )
        tree_mask = inp.tree_mask
        if tree_mask is not None and num_extends:
            starts_D, bits_D = tree_mask
            tree_mask = F.pad(starts_D, (num_extends, 0)), F.pad(bits_D, (num_extends, 0))
        return TritonPlan(inp.page_table_BP.contiguous(), inp.seq_lens_B, tree_mask, tiles, decodes, firsts_B)

    def attend(self, q_THD: Tensor, kv_layer: Tensor, plan: TritonPlan, scoring: Scoring = PLAIN) -> Tensor:
        """(T, H, D): softmax(q k / sqrt(D)) v over what each token sees of its own context."""
        assert kv_layer.is_contiguous(), "pages of one layer, one after the other"
        q_THD = q_THD.contiguous()
        out_THD = torch.empty_like(q_THD)
        if plan.tiles is not None:
            self._attend_tiles(q_THD, kv_layer, out_THD, plan, plan.tiles, scoring)
        for decodes in plan.decodes:
            self._attend_decodes(q_THD, kv_layer, out_THD, plan, decodes, scoring)
        return out_THD

    def _attend_tiles(
        self,
        q_THD: Tensor,
        kv_layer: Tensor,
        out_THD: Tensor,
        plan: TritonPlan,
        tiles: _Tiles,
        scoring: Scoring,
    ) -> None:
        _, num_heads, head_dim = q_THD.shape
        sizes = self._sizes(q_THD)
        tiles_kernel[(tiles.table_X4.shape[0], num_heads // self.groups)](
            q_THD,
            kv_layer,
            out_THD,
            tiles.table_X4,
            plan.page_table_BP,
            q_THD if scoring.sinks_H is None else scoring.sinks_H,
            _scale(scoring, head_dim),
            scoring.window,
            plan.page_table_BP.stride(0),
            HEADS=num_heads,
            GROUPS=self.groups,
            HEAD_DIM=head_dim,
            PAGE_SIZE=kv_layer.shape[2],
            ROWS=tiles.rows,
            STEP=_step(sizes.tile_step, q_THD),
            PADDED_DIM=_padded(head_dim),
            WINDOW=scoring.window > 0,
            SINKS=scoring.sinks_H is not None,
            num_warps=sizes.tile_warps,
            num_stages=sizes.tile_stages,
        )

    def _attend_decodes(
        self,
        q_THD: Tensor,
        kv_layer: Tensor,
        out_THD: Tensor,
        plan: TritonPlan,
        decodes: _Decodes,
        scoring: Scoring,
    ) -> None:
        _, num_heads, head_dim = q_THD.shape
        num_decodes = decodes.starts_R.shape[0] - 1
        sizes = self._sizes(q_THD)
        programs = min(self.num_programs, decodes.row_X.shape[0])
        tree_starts_B, tree_bits_B = plan.tree_mask or (plan.seq_lens_B, plan.seq_lens_B)
        splits_kernel[(num_heads // self.groups, programs)](
            q_THD,
            kv_layer,
            self._sums_XHD,
            self._scales_XH2,
            plan.seq_lens_B,
            tree_starts_B,
            tree_bits_B,
            plan.seq_lens_B if plan.firsts_B is None else plan.firsts_B,
            decodes.starts_R,
            decodes.row_X,
            plan.page_table_BP,
            _scale(scoring, head_dim),
            num_decodes,
            decodes.first_request,
            decodes.first_token,
            plan.page_table_BP.stride(0),
            HEADS=num_heads,
            GROUPS=self.groups,
            HEAD_DIM=head_dim,
            PAGE_SIZE=kv_layer.shape[2],
            ROWS=_rows(self.groups),
            SPLIT=SPLIT,
            STEP=_step(sizes.split_step, q_THD),
            PADDED_DIM=_padded(head_dim),
            TREE=plan.tree_mask is not None,
            WINDOW=plan.firsts_B is not None,
            num_warps=sizes.split_warps,
            num_stages=sizes.split_stages,
        )

        combine_kernel[(num_decodes, triton.cdiv(num_heads, sizes.combined_heads))](
            self._sums_XHD,
            self._scales_XH2,
            decodes.starts_R,
            q_THD if scoring.sinks_H is None else scoring.sinks_H,
            out_THD,
            decodes.first_token,
            HEADS=num_heads,
            HEAD_DIM=head_dim,
            PADDED_DIM=_padded(head_dim),
            COMBINED=sizes.combined,
            COMBINED_HEADS=sizes.combined_heads,
            SINKS=scoring.sinks_H is not None,
            num_warps=sizes.combined_warps,
        )

    def _sizes(self, q_THD: Tensor) -> Sizes:
        return FLOAT32 if q_THD.dtype == torch.float32 else self.sizes


def sizes_for(device: torch.device) -> Sizes:
    """The sizes for heads of two bytes a number on this device."""
    if device.type != "cuda":  # interpreted
        return SMALL
    shared = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    return LARGE if shared >= LARGE_SHARED else SMALL


def extend_tiles(
    extend_lens: tuple[int, ...], extend_seq_lens: tuple[int, ...], tokens_per_tile: int
) -> list[tuple[int, int, int, int]]:
    """Every tile of every chunk as (request, first token in T, tokens, position of the first token)."""
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


def _numbered(seq_lens_B: Tensor, first_request: int, first_token: int, count: int, longest: int) -> _Decodes:
    """Numbers the splits of `count` decodes. `longest` is the most splits that one of them can have."""
    device = seq_lens_B.device
    starts_R = torch.empty(count + 1, dtype=torch.int64, device=device)
    row_X = torch.empty(count * longest, dtype=torch.int32, device=device)
    number_kernel[(count,)](seq_lens_B, starts_R, row_X, first_request, SPLIT=SPLIT, BLOCK=128)
    return _Decodes(first_request, first_token, starts_R, row_X)


def _rows(rows: int) -> int:
    return max(MIN_ROWS, int(triton.next_power_of_2(rows)))


def _step(tokens: int, q_THD: Tensor) -> int:
    """Tokens of a kv step for these heads, if heads of STEP_HEAD_BYTES take `tokens`."""
    head_bytes = _padded(q_THD.shape[2]) * q_THD.element_size()
    return max(MIN_ROWS, min(tokens, tokens * STEP_HEAD_BYTES // head_bytes))


def _padded(head_dim: int) -> int:
    """The head size that a program computes with."""
    return max(MIN_ROWS, int(triton.next_power_of_2(head_dim)))


def _scale(scoring: Scoring, head_dim: int) -> float:
    """The factor by which a product of q and k becomes an exponent of two: by default log2(e) / sqrt(D)."""
    return math.log2(math.e) / math.sqrt(head_dim) if scoring.scale is None else math.log2(math.e) * scoring.scale
