"""Random mixed batches over paged KV, and plain attention over them to compare any backend with."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.inputs import TREE_SLOTS, ModelInput
from model.paged_kv import PagedKv
from model.sampler import signed
from model.scoring import PLAIN, Scoring
from protocol.kv_layout import KvLayout, LayerLayout


@dataclass(frozen=True)
class Case:
    inp: ModelInput
    layout: LayerLayout
    q_THD: Tensor
    kv_layer: Tensor
    expected_THD: Tensor  # float64
    scoring: Scoring = PLAIN


def make_case(
    extends: Sequence[tuple[int, int]],
    decodes: Sequence[int],
    *,
    page_size: int,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    dtype: str = "float32",
    seed: int = 0,
    trees: Sequence[tuple[int, int]] = (),
    window: int = 0,
    scale: float | None = None,
    sinks: bool = False,
) -> Case:
    """`extends` are (chunk, context with it), `decodes` contexts. Slots that nobody wrote, page 0 too, hold NaN.

    `trees` are (start, bits) of each decode, the bits unsigned. The slots that such a mask hides hold NaN as well, and
    those that lie before every window.
    """
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = heads
    sinks_H = torch.randn(num_heads, generator=generator) * 3
    sinks_H[0], sinks_H[-1] = 120, -120  # far above and below all scores: they join at the largest of both
    scoring = Scoring(window, scale, sinks_H if sinks else None)
    layout = LayerLayout(num_kv_heads, head_dim, page_size, dtype)
    lens = [(chunk, context) for chunk, context in extends] + [(1, context) for context in decodes]
    counts = [layout.num_pages(context) for _, context in lens]
    kv = PagedKv(KvLayout.uniform(1, num_kv_heads, head_dim, page_size, dtype), sum(counts) + 2)
    kv_layer = kv.layer(0).fill_(float("nan"))
    pages: list[int] = (torch.randperm(sum(counts), generator=generator) + 1).tolist()
    table = torch.zeros(len(lens), max(counts, default=0), dtype=torch.int64)
    queries = [torch.zeros((0, num_heads, head_dim), dtype=kv_layer.dtype)]
    expected = [torch.zeros((0, num_heads, head_dim), dtype=torch.float64)]
    positions: list[int] = []
    slots: list[int] = []
    for request, (chunk, context) in enumerate(lens):
        own, pages = pages[: counts[request]], pages[counts[request] :]
        table[request, : len(own)] = torch.tensor(own)
        k, v = torch.randn((2, context, num_kv_heads, head_dim), generator=generator).to(kv_layer.dtype).unbind(0)
        tree = trees[request - len(extends)] if trees and request >= len(extends) else (context, 0)
        seen = [slot for slot in range(context) if _is_seen(slot, *tree)]
        span = range(len(seen) - chunk, len(seen))  # with a tree mask only what it shows lies before a token
        seen = seen[max(0, span[0] + 1 - window) if window else 0 :]
        for position in seen:
            page, offset = own[position // page_size], position % page_size
            kv_layer[page, 0, offset], kv_layer[page, 1, offset] = k[position], v[position]
        q = torch.randn((chunk, num_heads, head_dim), generator=generator).to(kv_layer.dtype)
        queries.append(q)
        expected.append(plain_attention(q.double(), k[seen].double(), v[seen].double(), scoring))
        positions += span
        slots += [own[p // page_size] * page_size + p % page_size for p in range(context - chunk, context)]
    inp = ModelInput(
        input_ids_T=torch.zeros(len(positions), dtype=torch.int64),
        positions_T=torch.tensor(positions, dtype=torch.int64),
        slots_T=torch.tensor(slots, dtype=torch.int64),
        page_table_BP=table,
        seq_lens_B=torch.tensor([context for _, context in lens], dtype=torch.int64),
        extend_lens=tuple(chunk for chunk, _ in extends),
        extend_seq_lens=tuple(context for _, context in extends),
        num_decodes=len(decodes),
        max_decode_seq_len=max(decodes, default=0),
        logit_indices_L=torch.zeros(0, dtype=torch.int64),
        tree_starts_D=torch.tensor([start for start, _ in trees], dtype=torch.int64) if trees else None,
        tree_bits_D=torch.tensor([signed(bits) for _, bits in trees], dtype=torch.int64) if trees else None,
    )
    return Case(inp, layout, torch.cat(queries), kv_layer, torch.cat(expected), scoring)


def _is_seen(slot: int, start: int, bits: int) -> bool:
    """As ModelInput says, with whole numbers of Python."""
    return slot < start or (slot < start + TREE_SLOTS and bool(bits >> (slot - start) & 1))


def plain_attention(q_CHD: Tensor, k_SKD: Tensor, v_SKD: Tensor, scoring: Scoring = PLAIN) -> Tensor:
    """Causal attention of the last C of S tokens, written as the formula says."""
    groups = q_CHD.shape[1] // k_SKD.shape[1]
    k_SHD, v_SHD = k_SKD.repeat_interleave(groups, 1), v_SKD.repeat_interleave(groups, 1)
    scale = q_CHD.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
    scores_HCS = torch.einsum("chd,shd->hcs", q_CHD, k_SHD) * scale
    chunk, context = q_CHD.shape[0], k_SKD.shape[0]
    behind_CS = torch.arange(context - chunk, context)[:, None] - torch.arange(context)[None]
    allowed_CS = (behind_CS >= 0) & (behind_CS < (scoring.window or context + 1))
    weights_HCS = scores_HCS.masked_fill(~allowed_CS, float("-inf")).exp()
    total_HC1 = weights_HCS.sum(-1, keepdim=True)
    if scoring.sinks_H is not None:
        total_HC1 = total_HC1 + scoring.sinks_H.double().exp()[:, None, None]
    return torch.einsum("hcs,shd->chd", weights_HCS / total_HC1, v_SHD)


def paged_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
    num_splits: int,
    scale: float | None = None,
) -> Tensor:
    """What torch documents, written plainly, with the checks that its kernels make."""
    assert {t.dtype for t in (cu_seq_q, cu_seq_k, seqused_k, block_table)} == {torch.int32}
    assert window_size[1] == 0 and enable_gqa and num_splits == 1
    assert cu_seq_k.diff().tolist() == seqused_k.tolist() and max_k >= int(seqused_k.max())
    assert max_q == int(cu_seq_q.diff().max()) and k.stride(-1) == v.stride(-1) == 1
    outs = []
    for request, context in enumerate(seqused_k.tolist()):
        pages = block_table[request].long()
        own_k, own_v = (side[pages].flatten(0, 1)[:context] for side in (k, v))
        own_q, scoring = q[cu_seq_q[request] : cu_seq_q[request + 1]], Scoring(window_size[0] + 1, scale)
        first = max(0, context - own_q.shape[0] + 1 - scoring.window) if scoring.window else 0
        outs.append(plain_attention(own_q, own_k[first:], own_v[first:], scoring))
    return torch.cat(outs)
