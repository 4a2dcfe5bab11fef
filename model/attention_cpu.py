"""Paged attention on the CPU: chunks use torch's blocked attention, decodes use a kernel or batched products.

Decodes of similar length form a group, so padding stays small and memory bounded. Query heads that share a kv head are
rows of one product. Slots that a decode does not see may hold NaN, which a mask does not stop (0 * NaN is NaN). So
decodes overwrite the scores of these slots and zero their V. If queries are wider than the pages, K and V are widened.
Of a layer with a window, pages are read from the first that a token of the chunk, or the decode, sees.
Shapes: T tokens, H query heads, K kv heads, G = H / K, D head_dim, S context, N requests of a group,
C tokens of a chunk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from model.cpu_kernels import CpuKernels, CRequests
from model.inputs import ModelInput, is_visible
from model.paged_kv import TORCH_DTYPES
from model.scoring import PLAIN, Scoring
from protocol.kv_layout import LayerLayout

QUERY_BLOCK: Final = 512  # rows that attend together in a chunk with a prefix
MAX_KEPT_MASK: Final = 1 << 24  # elements of causal mask that a plan keeps for all layers
MAX_GROUP_BYTES: Final = 64 << 20  # gathered K (or V) of one decode group


@dataclass(frozen=True)
class _QueryBlock:
    """Rows [start, end) of T. Their contexts end at first_context, first_context + 1, ... They begin at 0, or are the
    last `window` slots of that. Slots before `begin` are not read."""

    start: int
    end: int
    first_context: int
    begin: int = 0
    window: int = 0  # 0: every row sees its context from 0 on
    mask_CS: Tensor | None = None  # additive; None: make it when needed

    @property
    def last_context(self) -> int:
        return self.first_context + self.end - self.start - 1

    @property
    def is_whole(self) -> bool:
        """Whether row i sees the first i + 1 slots."""
        return self.first_context == 1 and not self.window

    def cut(self) -> Iterator["_QueryBlock"]:
        """The same rows in blocks of QUERY_BLOCK at most, if they are whole."""
        for done in range(0, self.end - self.start, QUERY_BLOCK):
            end = min(self.start + done + QUERY_BLOCK, self.end)
            yield replace(self, start=self.start + done, end=end, first_context=done + 1)

    def with_mask(self, dtype: torch.dtype) -> "_QueryBlock":
        """The same block with its mask."""
        shape = self.end - self.start, self.last_context - self.begin
        own = self.first_context - self.begin  # row i sees slots before begin + own + i
        mask_CS = torch.full(shape, float("-inf"), dtype=dtype).triu_(own)
        if self.window:
            mask_CS += torch.full(shape, float("-inf"), dtype=dtype).tril_(own - self.window - 1)
        return replace(self, mask_CS=mask_CS)


@dataclass(frozen=True)
class _Extend:
    pages: Tensor
    first_slot: int  # of the first page
    blocks: tuple[_QueryBlock, ...]


@dataclass(frozen=True)
class _DecodeGroup:
    rows_N: Tensor | slice  # into T
    pages: Tensor  # N * P, request by request
    unseen_N1S: Tensor  # True in the slots behind a request's context, before its window, and that a tree mask hides
    unseen_v_rows: Tensor  # the V of these slots, as indices into the gathered rows of K and V


@dataclass(frozen=True)
class _PagedDecodes:
    """Decodes for a kernel that reads the pages without gathering them. The first one is token `start`."""

    start: int
    tables_DP: Tensor
    seq_lens_D: Tensor
    positions_D: Tensor
    tree_mask: tuple[Tensor, Tensor] | None  # starts and bits of a tree mask

    @property
    def in_c(self) -> CRequests:
        """The same for C, valid as long as this object lives."""
        return CRequests.of(self.tables_DP, self.seq_lens_D, self.positions_D, self.tree_mask)


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

    def plan(self, inp: ModelInput, layout: LayerLayout, window: int = 0) -> CpuPlan:
        """Pages, groups and masks. `inp` is in host memory, so its lengths can be read."""
        dtype = self.query_dtype or TORCH_DTYPES[layout.dtype]
        in_kernel = self.row_exact and self.kernels is not None
        extends, chunks, start = list[_Extend](), list[_PagedDecodes](), 0
        for index, (length, seq_len) in enumerate(zip(inp.extend_lens, inp.extend_seq_lens, strict=True)):
            if in_kernel:
                pages = inp.page_table_BP[index, : layout.num_pages(seq_len)]
                contexts_C = torch.arange(seq_len - length + 1, seq_len + 1)
                chunks.append(_PagedDecodes(start, pages.expand(length, -1), contexts_C, contexts_C - 1, None))
            else:
                blocks = tuple(_query_blocks(start, length, seq_len, dtype, window))
                first_page = blocks[0].begin // layout.page_size if blocks else 0
                pages = inp.page_table_BP[index, first_page : layout.num_pages(seq_len)]
                extends.append(_Extend(pages, first_page * layout.page_size, blocks))
            start += length

        first = len(inp.extend_lens)
        if self.kernels is not None:
            ends = (inp.page_table_BP[first:], inp.seq_lens_B[first:], inp.positions_T[start:], inp.tree_mask)
            paged = _PagedDecodes(start, *ends) if inp.num_decodes else None
            return CpuPlan(tuple(extends), (), paged, tuple(chunks))

        decode_lens = inp.seq_lens_B[first : first + inp.num_decodes].tolist()
        firsts = [max(0, position + 1 - window) if window else 0 for position in inp.positions_T[start:].tolist()]
        own_pages = [first_slot // layout.page_size for first_slot in firsts]
        read_lens = [end - page * layout.page_size for end, page in zip(decode_lens, own_pages, strict=True)]
        groups = [
            _decode_group(members, start, decode_lens, firsts, inp, layout)
            for members in group_by_length(read_lens, MAX_GROUP_BYTES // layout.token_bytes)
        ]
        return CpuPlan(tuple(extends), tuple(groups))

    def attend(self, q_THD: Tensor, kv_layer: Tensor, plan: CpuPlan, scoring: Scoring = PLAIN) -> Tensor:
        """(T, H, D): softmax(q k / sqrt(D)) v over what each token sees of its own context."""
        if not plan.extends and len(plan.decodes) == 1:
            return self._decode(q_THD, kv_layer, plan.decodes[0], scoring)

        out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype)
        for extend in plan.extends:
            self._extend(q_THD, kv_layer, extend, scoring, out_THD)
        for group in plan.decodes:
            out_THD[group.rows_N] = self._decode(q_THD[group.rows_N], kv_layer, group, scoring)
        for paged in (*plan.chunks, *filter(None, [plan.paged])):
            assert self.kernels is not None
            rows = slice(paged.start, paged.start + paged.seq_lens_D.shape[0])
            self.kernels.attend(q_THD[rows], kv_layer, paged.in_c, scoring, out_THD[rows])
        return out_THD

    def _extend(self, q_THD: Tensor, kv_layer: Tensor, extend: _Extend, scoring: Scoring, out_THD: Tensor) -> None:
        num_heads, num_kv_heads, head_dim = q_THD.shape[1], *kv_layer.shape[3:]
        groups = num_heads // num_kv_heads
        kv_P2SKD = kv_layer.index_select(0, extend.pages)
        k_KSD = kv_P2SKD[:, 0].reshape(-1, num_kv_heads, head_dim).transpose(0, 1).to(q_THD.dtype)
        v_KSD = kv_P2SKD[:, 1].reshape(-1, num_kv_heads, head_dim).transpose(0, 1).to(q_THD.dtype)

        for block in _with_sinks(extend.blocks, scoring):
            q_CHD = q_THD[block.start : block.end]
            q_GKCD = q_CHD.unflatten(1, (num_kv_heads, groups)).permute(2, 1, 0, 3)
            seen = slice(block.begin - extend.first_slot, block.last_context - extend.first_slot)
            causal = block.is_whole and scoring.sinks_H is None
            mask_CS = None
            if not causal:
                mask_CS = (block if block.mask_CS is not None else block.with_mask(q_THD.dtype)).mask_CS
            k_GKSD, v_GKSD = (side[:, seen].expand(groups, -1, -1, -1) for side in (k_KSD, v_KSD))
            if scoring.sinks_H is not None and mask_CS is not None:
                out_GKCD = _attended_with_sinks(q_GKCD, k_GKSD, v_GKSD, mask_CS, scoring)
            else:
                out_GKCD = F.scaled_dot_product_attention(
                    q_GKCD, k_GKSD, v_GKSD, attn_mask=mask_CS, is_causal=causal, scale=scoring.scale
                )
            out_THD[block.start : block.end] = out_GKCD.permute(2, 1, 0, 3).reshape(q_CHD.shape)

    def _decode(self, q_NHD: Tensor, kv_layer: Tensor, group: _DecodeGroup, scoring: Scoring) -> Tensor:
        count, num_heads, head_dim = q_NHD.shape
        page_size, num_kv_heads = kv_layer.shape[2:4]
        kv = kv_layer.index_select(0, group.pages)
        kv.view(-1, num_kv_heads * head_dim).index_fill_(0, group.unseen_v_rows, 0.0)

        # Products of contiguous matrices. Strided ones take three times as long, even counting the copies.
        kv_2NKPSD = kv.view(count, -1, 2, page_size, num_kv_heads, head_dim).permute(2, 0, 4, 1, 3, 5)
        k_MSD, v_MSD = kv_2NKPSD.to(q_NHD.dtype).reshape(2, count * num_kv_heads, -1, head_dim)
        q_MGD = (q_NHD * (scoring.scale or head_dim**-0.5)).view(count * num_kv_heads, -1, head_dim)

        scores_NHS = torch.bmm(q_MGD, k_MSD.transpose(1, 2)).view(count, num_heads, -1)
        scores_NHS.masked_fill_(group.unseen_N1S, float("-inf"))
        if scoring.sinks_H is not None:
            sinks_NH1 = scoring.sinks_H.to(scores_NHS.dtype).expand(count, -1)[..., None]
            scores_NHS = torch.cat((scores_NHS, sinks_NH1), dim=-1)
        weights_NHS = torch.softmax(scores_NHS, dim=-1, dtype=torch.float32).to(q_NHD.dtype)
        weights_NHS = weights_NHS[..., : group.unseen_N1S.shape[-1]]
        return torch.bmm(weights_NHS.view(count * num_kv_heads, -1, weights_NHS.shape[-1]), v_MSD).view(q_NHD.shape)


def _decode_group(
    members: list[int], start: int, seq_lens: list[int], firsts: list[int], inp: ModelInput, layout: LayerLayout
) -> _DecodeGroup:
    """The group of the decodes `members`. Decode i is token `start + i`, and sees no slot before `firsts[i]`.

    A group of all decodes keeps their order, so that queries and results need not be gathered.
    """
    first_pages = [first // layout.page_size for first in firsts]
    longest = max(layout.num_pages(seq_lens[member]) - first_pages[member] for member in members)
    tables_DP = inp.page_table_BP[len(inp.extend_lens) :]
    members_N: Tensor | slice
    rows_N: Tensor | slice
    if len(members) == len(seq_lens):
        members, members_N, rows_N = list(range(len(members))), slice(None), slice(start, start + len(members))
    else:
        members_N = torch.tensor(members, dtype=torch.int64)
        rows_N = start + members_N

    # The pages of each from its first one on. Behind the last one of a row of the table, any page is as good.
    pages_N1 = torch.tensor([first_pages[member] for member in members])[:, None]
    columns_NP = (pages_N1 + torch.arange(longest)).clamp(max=tables_DP.shape[1] - 1)
    pages = tables_DP[members_N].gather(1, columns_NP).flatten()

    slots_NS = pages_N1 * layout.page_size + torch.arange(longest * layout.page_size)
    lens_N1, firsts_N1 = (
        torch.tensor([column[member] for member in members])[:, None] for column in (seq_lens, firsts)
    )
    unseen_NS = (slots_NS >= lens_N1) | (slots_NS < firsts_N1)
    if inp.tree_mask is not None:
        starts_N1, bits_N1 = (column[members_N, None] for column in inp.tree_mask)
        unseen_NS |= ~is_visible(slots_NS, starts_N1, bits_N1)
    unseen = unseen_NS.flatten().nonzero()[:, 0]
    v_rows = unseen + (unseen // layout.page_size + 1) * layout.page_size
    return _DecodeGroup(rows_N, pages, unseen_NS[:, None], v_rows)


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


def _query_blocks(start: int, length: int, seq_len: int, dtype: torch.dtype, window: int) -> Iterator[_QueryBlock]:
    """The blocks of a chunk. A window as long as the context hides nothing."""
    prefix, window = seq_len - length, window if window < seq_len else 0
    if prefix == 0 and not window:
        yield _QueryBlock(start, start + length, 1)
        return
    for done in range(0, length, QUERY_BLOCK):
        rows = min(QUERY_BLOCK, length - done)
        first_context = prefix + done + 1
        begin = max(0, first_context - window) if window else 0
        block = _QueryBlock(start + done, start + done + rows, first_context, begin, window)
        keep = length * (seq_len - begin if window else seq_len) <= MAX_KEPT_MASK
        yield block.with_mask(dtype) if keep else block


def _with_sinks(blocks: Sequence[_QueryBlock], scoring: Scoring) -> Iterator[_QueryBlock]:
    """The blocks; with sinks a whole one is cut, because it needs a mask."""
    for block in blocks:
        if scoring.sinks_H is not None and block.is_whole:
            yield from block.cut()
        else:
            yield block


def _attended_with_sinks(q_GKCD: Tensor, k_GKSD: Tensor, v_GKSD: Tensor, mask_CS: Tensor, scoring: Scoring) -> Tensor:
    """Attention with one more token in front that every row sees. Its product with a query is the sink, its value is 0.

    For that a head has one more number: the sink in queries, 1 in the K of this token, else 0.
    """
    assert scoring.sinks_H is not None
    groups, kv_heads, rows, head_dim = q_GKCD.shape
    scale = scoring.scale or head_dim**-0.5
    sinks_GK11 = (scoring.sinks_H / scale).view(kv_heads, groups).T[..., None, None].to(q_GKCD.dtype)
    q_GKCD = torch.cat((q_GKCD, sinks_GK11.expand(-1, -1, rows, -1)), dim=-1)
    k_KSD, v_KSD = (F.pad(side_GKSD[0], (0, 1, 1, 0)) for side_GKSD in (k_GKSD, v_GKSD))
    k_KSD[:, 0, -1] = 1.0
    out_GKCD = F.scaled_dot_product_attention(
        q_GKCD,
        k_KSD.expand(groups, -1, -1, -1),
        v_KSD.expand(groups, -1, -1, -1),
        attn_mask=F.pad(mask_CS, (1, 0)),
        scale=scale,
    )
    return out_GKCD[..., :head_dim]
