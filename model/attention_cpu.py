"""Paged attention on the CPU: chunks use torch's blocked attention, decodes use a kernel or batched products.

Decodes of similar length form a group, so padding stays small and memory bounded. Query heads that share a kv head are
rows of one product. Slots that a decode does not see may hold NaN, which a mask does not stop (0 * NaN is NaN). So
decodes overwrite the scores of these slots and zero their V. If queries are wider than the pages, K and V are widened.
Shapes: T tokens, H query heads, K kv heads, G = H / K, D head_dim, S context, N requests of a group,
C tokens of a chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from model.cpu_kernels import CpuKernels
from model.inputs import ModelInput, is_visible
from model.paged_kv import TORCH_DTYPES
from protocol.kv_layout import LayerLayout

QUERY_BLOCK: Final = 512  # rows that attend together in a chunk with a prefix
MAX_KEPT_MASK: Final = 1 << 24  # elements of causal mask that a plan keeps for all layers
MAX_GROUP_BYTES: Final = 64 << 20  # gathered K (or V) of one decode group


@dataclass(frozen=True)
class _QueryBlock:
    """Rows [start, end) of T. Their contexts are [0, first_context), [0, first_context + 1), ..."""

    start: int
    end: int
    first_context: int
    mask_CS: Tensor | None  # additive; None: make it when needed

    @property
    def last_context(self) -> int:
        return self.first_context + self.end - self.start - 1


@dataclass(frozen=True)
class _Extend:
    pages: Tensor
    blocks: tuple[_QueryBlock, ...]


@dataclass(frozen=True)
class _DecodeGroup:
    rows_N: Tensor | slice  # into T
    pages: Tensor  # N * P, request by request
    unseen_N1S: Tensor  # True in the slots behind a request's context, and in those that a tree mask hides
    unseen_v_rows: Tensor  # the V of these slots, as indices into the gathered rows of K and V


@dataclass(frozen=True)
class _PagedDecodes:
    """Decodes for a kernel that reads the pages without gathering them. The first one is token `start`."""

    start: int
    tables_DP: Tensor
    seq_lens_D: Tensor
    tree_mask: tuple[Tensor, Tensor] | None  # starts and bits of a tree mask


@dataclass(frozen=True)
class CpuPlan:
    """The plan of one forward: decodes in groups, or all at once for a kernel, which may have the chunks, too."""

    extends: tuple[_Extend, ...]
    decodes: tuple[_DecodeGroup, ...]
    paged: _PagedDecodes | None = None
    chunks: tuple[_PagedDecodes, ...] = ()  # each token of a chunk as a decode


@dataclass(frozen=True)
class CpuAttention:
    """Attends to chunks one by one. Decodes run in one kernel, or without kernels in padded groups.

    Queries have `query_dtype`, or the dtype of the pages if it is None. `row_exact`: the kernel computes chunks, too,
    so that a token has the same bits in any chunk, and as a decode.
    """

    query_dtype: torch.dtype | None = None
    kernels: CpuKernels | None = None
    row_exact: bool = False

    def longest_at_once(self, num_decodes: int) -> int | None:
        """See AttentionBackend. Any batch takes one pass."""
        return None

    def plan(self, inp: ModelInput, layout: LayerLayout) -> CpuPlan:
        """Pages, groups and masks. `inp` is in host memory, so its lengths can be read."""
        dtype = self.query_dtype or TORCH_DTYPES[layout.dtype]
        in_kernel = self.row_exact and self.kernels is not None
        extends, chunks, start = list[_Extend](), list[_PagedDecodes](), 0
        for index, (length, seq_len) in enumerate(zip(inp.extend_lens, inp.extend_seq_lens, strict=True)):
            pages = inp.page_table_BP[index, : layout.num_pages(seq_len)]
            if in_kernel:
                contexts_C = torch.arange(seq_len - length + 1, seq_len + 1)
                chunks.append(_PagedDecodes(start, pages.expand(length, -1), contexts_C, None))
            else:
                extends.append(_Extend(pages, tuple(_query_blocks(start, length, seq_len, dtype))))
            start += length

        first = len(inp.extend_lens)
        if self.kernels is not None:
            ends = (inp.page_table_BP[first:], inp.seq_lens_B[first:], inp.tree_mask)
            paged = _PagedDecodes(start, *ends) if inp.num_decodes else None
            return CpuPlan(tuple(extends), (), paged, tuple(chunks))

        decode_lens = inp.seq_lens_B[first : first + inp.num_decodes].tolist()
        groups = [
            _decode_group(members, start, decode_lens, inp, layout)
            for members in group_by_length(decode_lens, MAX_GROUP_BYTES // layout.token_bytes)
        ]
        return CpuPlan(tuple(extends), tuple(groups))

    def attend(self, q_THD: Tensor, kv_layer: Tensor, plan: CpuPlan) -> Tensor:
        """(T, H, D): softmax(q k / sqrt(D)) v over each token's own context."""
        if not plan.extends and len(plan.decodes) == 1:
            return self._decode(q_THD, kv_layer, plan.decodes[0])

        out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype)
        for extend in plan.extends:
            self._extend(q_THD, kv_layer, extend, out_THD)
        for group in plan.decodes:
            out_THD[group.rows_N] = self._decode(q_THD[group.rows_N], kv_layer, group)
        for paged in (*plan.chunks, *filter(None, [plan.paged])):
            assert self.kernels is not None
            rows = slice(paged.start, paged.start + paged.seq_lens_D.shape[0])
            q_DHD, out_DHD = q_THD[rows], out_THD[rows]
            self.kernels.attend(q_DHD, kv_layer, paged.tables_DP, paged.seq_lens_D, paged.tree_mask, out_DHD)
        return out_THD

    def _extend(self, q_THD: Tensor, kv_layer: Tensor, extend: _Extend, out_THD: Tensor) -> None:
        num_heads, num_kv_heads, head_dim = q_THD.shape[1], *kv_layer.shape[3:]
        groups = num_heads // num_kv_heads
        kv_P2SKD = kv_layer.index_select(0, extend.pages)
        k_KSD = kv_P2SKD[:, 0].reshape(-1, num_kv_heads, head_dim).transpose(0, 1).to(q_THD.dtype)
        v_KSD = kv_P2SKD[:, 1].reshape(-1, num_kv_heads, head_dim).transpose(0, 1).to(q_THD.dtype)

        for block in extend.blocks:
            q_CHD = q_THD[block.start : block.end]
            q_GKCD = q_CHD.unflatten(1, (num_kv_heads, groups)).permute(2, 1, 0, 3)
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

    def _decode(self, q_NHD: Tensor, kv_layer: Tensor, group: _DecodeGroup) -> Tensor:
        count, num_heads, head_dim = q_NHD.shape
        page_size, num_kv_heads = kv_layer.shape[2:4]
        kv = kv_layer.index_select(0, group.pages)
        kv.view(-1, num_kv_heads * head_dim).index_fill_(0, group.unseen_v_rows, 0.0)

        # Products of contiguous matrices. Strided ones take three times as long, even counting the copies.
        kv_2NKPSD = kv.view(count, -1, 2, page_size, num_kv_heads, head_dim).permute(2, 0, 4, 1, 3, 5)
        k_MSD, v_MSD = kv_2NKPSD.to(q_NHD.dtype).reshape(2, count * num_kv_heads, -1, head_dim)
        q_MGD = (q_NHD * head_dim**-0.5).view(count * num_kv_heads, -1, head_dim)

        scores_NHS = torch.bmm(q_MGD, k_MSD.transpose(1, 2)).view(count, num_heads, -1)
        scores_NHS.masked_fill_(group.unseen_N1S, float("-inf"))
        weights_NHS = torch.softmax(scores_NHS, dim=-1, dtype=torch.float32).to(q_NHD.dtype)
        return torch.bmm(weights_NHS.view(count * num_kv_heads, -1, weights_NHS.shape[-1]), v_MSD).view(q_NHD.shape)


def _decode_group(
    members: list[int], start: int, seq_lens: list[int], inp: ModelInput, layout: LayerLayout
) -> _DecodeGroup:
    """The group of the decodes `members`, longest first. Decode i is token `start + i`.

    A group of all decodes keeps their order, so that queries and results need not be gathered.
    """
    longest = layout.num_pages(seq_lens[members[0]])
    tables_DP = inp.page_table_BP[len(inp.extend_lens) :]
    members_N: Tensor | slice
    rows_N: Tensor | slice
    if len(members) == len(seq_lens):
        members, members_N, rows_N = list(range(len(members))), slice(None), slice(start, start + len(members))
    else:
        members_N = torch.tensor(members, dtype=torch.int64)
        rows_N = start + members_N

    slots_S = torch.arange(longest * layout.page_size)
    lens_N1 = torch.tensor([seq_lens[member] for member in members])[:, None]
    unseen_NS = slots_S >= lens_N1
    if inp.tree_mask is not None:
        starts_N1, bits_N1 = (column[members_N, None] for column in inp.tree_mask)
        unseen_NS |= ~is_visible(slots_S, starts_N1, bits_N1)
    unseen = unseen_NS.flatten().nonzero()[:, 0]
    v_rows = unseen + (unseen // layout.page_size + 1) * layout.page_size
    return _DecodeGroup(rows_N, tables_DP[members_N, :longest].flatten(), unseen_NS[:, None], v_rows)


def group_by_length(seq_lens: list[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of `seq_lens`, longest first, in groups. Each member is at least half as long as the longest one.

    A padded group has at most `max_tokens` tokens, unless it has one member.
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
    """(rows, first_context + rows - 1): 0 at the first `first_context + i` tokens of row i, -inf at the others."""
    mask_CS = torch.full((rows, first_context + rows - 1), float("-inf"), dtype=dtype)
    return mask_CS.triu_(first_context)
