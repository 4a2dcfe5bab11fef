"""Paged attention on the CPU: pages are gathered whole; chunks use torch's blocked attention, decodes batched products.

Decides how decodes are grouped so that padding stays small and memory bounded. Query heads that share a kv head become
rows of one product, so K and V are never repeated. Slots past a context's end may hold anything, NaN included: decodes
overwrite their scores and zero their V, because adding a mask does not stop NaN (NaN - inf and 0 * NaN are NaN).
What it does not know: how KV got there.
Shapes: T tokens, H query heads, K kv heads, G = H / K, D head_dim, S context, N requests of a group,
C tokens of a chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from model.inputs import ModelInput
from model.paged_kv import torch_dtype
from protocol.kv_layout import KvLayout

QUERY_BLOCK: Final = 512  # rows of a chunk that attend together when earlier pages come before them
MAX_KEPT_MASK: Final = 1 << 24  # elements of causal mask that a plan keeps for all layers
MAX_GROUP_BYTES: Final = 64 << 20  # gathered K (or V) of one decode group


@dataclass(frozen=True)
class _Pages:
    """Rows of K and V when a layer is viewed as (num_pages * 2, page_size * K * D)."""

    k_rows: Tensor
    v_rows: Tensor


@dataclass(frozen=True)
class _QueryBlock:
    """Rows [start, end) of T, whose contexts are [0, first_context), [0, first_context + 1), ..."""

    start: int
    end: int
    first_context: int
    mask_CS: Tensor | None  # additive; None: make it when needed

    @property
    def last_context(self) -> int:
        return self.first_context + self.end - self.start - 1


@dataclass(frozen=True)
class _Extend:
    pages: _Pages
    blocks: tuple[_QueryBlock, ...]


@dataclass(frozen=True)
class _DecodeGroup:
    rows_N: Tensor  # into T
    pages: _Pages
    past_end_N11S: Tensor  # True in the slots behind a request's context
    past_end_rows: Tensor  # the same slots, into N * S


@dataclass(frozen=True)
class CpuPlan:
    """What every layer of one forward needs."""

    extends: tuple[_Extend, ...]
    decodes: tuple[_DecodeGroup, ...]


class CpuAttention:
    """Extends one by one (each over its earlier pages and causally over itself), decodes in padded groups."""

    def plan(self, inp: ModelInput, layout: KvLayout) -> CpuPlan:
        """Page rows, groups and masks; `inp` lives in host memory, so lengths may be read."""
        dtype = torch_dtype(layout.dtype)
        extends = []
        start = 0
        for index, (length, seq_len) in enumerate(zip(inp.extend_lens, inp.extend_seq_lens, strict=True)):
            pages = _pages(inp.page_table_BP[index, : layout.num_pages(seq_len)])
            extends.append(_Extend(pages, tuple(_query_blocks(start, length, seq_len, dtype))))
            start += length
        first = len(extends)
        decode_lens = inp.seq_lens_B[first : first + inp.num_decodes].tolist()
        groups = []
        for members in group_by_length(decode_lens, MAX_GROUP_BYTES // layout.token_bytes):
            members_N = torch.tensor(members, dtype=torch.int64)
            seq_lens = tuple(decode_lens[member] for member in members)
            num_pages = layout.num_pages(seq_lens[0])
            pages = _pages(inp.page_table_BP[first + members_N, :num_pages].flatten())
            past_end_NS = torch.arange(num_pages * layout.page_size) >= torch.tensor(seq_lens)[:, None]
            past_end_rows = past_end_NS.flatten().nonzero()[:, 0]
            groups.append(_DecodeGroup(start + members_N, pages, past_end_NS[:, None, None], past_end_rows))
        return CpuPlan(tuple(extends), tuple(groups))

    def attend(self, q_THD: Tensor, kv_layer: Tensor, plan: CpuPlan) -> Tensor:
        """(T, H, D): softmax(q k / sqrt(D)) v over each token's own context."""
        out_THD = torch.empty_like(q_THD)
        flat = kv_layer.view(kv_layer.shape[0] * 2, -1)
        for extend in plan.extends:
            self._extend(q_THD, flat, kv_layer.shape[3], extend, out_THD)
        for group in plan.decodes:
            out_THD[group.rows_N] = self._decode(q_THD[group.rows_N], flat, kv_layer.shape[3], group)
        return out_THD

    def _extend(self, q_THD: Tensor, flat: Tensor, num_kv_heads: int, extend: _Extend, out_THD: Tensor) -> None:
        num_heads, head_dim = q_THD.shape[1:]
        groups = num_heads // num_kv_heads
        k_KSD = flat.index_select(0, extend.pages.k_rows).view(-1, num_kv_heads, head_dim).transpose(0, 1)
        v_KSD = flat.index_select(0, extend.pages.v_rows).view(-1, num_kv_heads, head_dim).transpose(0, 1)
        for block in extend.blocks:
            q_CHD = q_THD[block.start : block.end]
            q_GKCD = q_CHD.view(-1, num_kv_heads, groups, head_dim).permute(2, 1, 0, 3)
            end = block.last_context
            causal = block.first_context == 1
            mask_CS = None if causal else block.mask_CS
            if mask_CS is None and not causal:
                mask_CS = _causal_mask(block.first_context, block.end - block.start, q_THD.dtype)
            out_GKCD = F.scaled_dot_product_attention(
                q_GKCD,
                k_KSD[:, :end].expand(groups, -1, -1, -1),
                v_KSD[:, :end].expand(groups, -1, -1, -1),
                attn_mask=mask_CS,
                is_causal=causal,
            )
            out_THD[block.start : block.end] = out_GKCD.permute(2, 1, 0, 3).reshape(q_CHD.shape)

    def _decode(self, q_NHD: Tensor, flat: Tensor, num_kv_heads: int, group: _DecodeGroup) -> Tensor:
        count, num_heads, head_dim = q_NHD.shape
        shape = (count, -1, num_kv_heads, head_dim)
        k_NSKD = flat.index_select(0, group.pages.k_rows).view(shape)
        v_NSKD = flat.index_select(0, group.pages.v_rows).view(shape)
        v_NSKD.view(-1, num_kv_heads * head_dim).index_fill_(0, group.past_end_rows, 0.0)
        # Products of contiguous matrices; strided ones take three times as long, copies included.
        k_NKSD, v_NKSD = k_NSKD.transpose(1, 2).contiguous(), v_NSKD.transpose(1, 2).contiguous()
        q_NKGD = (q_NHD * head_dim**-0.5).view(count, num_kv_heads, num_heads // num_kv_heads, head_dim)
        scores_NKGS = torch.matmul(q_NKGD, k_NKSD.transpose(2, 3)).float()
        weights_NKGS = torch.softmax(scores_NKGS.masked_fill_(group.past_end_N11S, float("-inf")), dim=-1)
        return torch.matmul(weights_NKGS.to(q_NHD.dtype), v_NKSD).reshape(q_NHD.shape)


def group_by_length(seq_lens: list[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of `seq_lens`, longest first, in groups whose members are at least half as long as their longest.

    A padded group never exceeds `max_tokens`, unless it has one member.
    """
    order = sorted(range(len(seq_lens)), key=lambda index: -seq_lens[index])
    group: list[int] = []
    for index in order:
        longest = seq_lens[group[0]] if group else 0
        if group and (2 * seq_lens[index] < longest or (len(group) + 1) * longest > max_tokens):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def _pages(pages_N: Tensor) -> _Pages:
    k_rows = pages_N * 2
    return _Pages(k_rows, k_rows + 1)


def _query_blocks(start: int, length: int, seq_len: int, dtype: torch.dtype) -> Iterator[_QueryBlock]:
    prefix = seq_len - length
    if prefix == 0:
        yield _QueryBlock(start, start + length, 1, None)
        return
    for done in range(0, length, QUERY_BLOCK):
        rows = min(QUERY_BLOCK, length - done)
        first_context = prefix + done + 1
        keep = length * seq_len <= MAX_KEPT_MASK
        mask_CS = _causal_mask(first_context, rows, dtype) if keep else None
        yield _QueryBlock(start + done, start + done + rows, first_context, mask_CS)


def _causal_mask(first_context: int, rows: int, dtype: torch.dtype) -> Tensor:
    """(rows, first_context + rows - 1): 0 where row i may look (its first `first_context + i` tokens), else -inf."""
    mask_CS = torch.full((rows, first_context + rows - 1), float("-inf"), dtype=dtype)
    return mask_CS.triu_(first_context)
