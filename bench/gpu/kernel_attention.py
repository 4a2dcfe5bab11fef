"""The attention of one layer, in CUDA graphs of many runs.

    decodes    captured for their own context, and for the model's longest one as a server captures
    prompt     beside torch's scaled_dot_product_attention over the same K and V without pages

Results are compared with torch's: one that is off is a fault.
Shapes: T tokens, B requests, P pages of a context, S tokens of a context, H query heads, K kv heads, D head_dim.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gpu.kernel_sides import BANDWIDTH_SHARE, FEWEST_RUNS, Setup, relative_error, runs_for, shown, timed
from bench.gpu.shape import DTYPE, attention_flops, noise, prompt_input
from bench.records import Value
from bench.sheet import Sheet
from bench.step.decoding import PAGE_SIZE
from model.attention import AttentionBackend, choose_attention
from model.inputs import ModelInput, padding
from model.paged_kv import TORCH_DTYPES, PagedKv
from protocol.kv_layout import KvLayout

LONGEST_RATIO: Final = 1.05
BOUND: Final = 1e-2  # of the error of attention in bfloat16 beside torch's in float32
NUM_CHECKED: Final = 4  # decodes of a batch that torch computes, too
DECODE_ABOUT: Final = (
    "Microseconds of one layer. *tight*: captured for this context; *longest*: for the model's longest context. *GB/s*:"
    " of K and V, once each. *share*: of a device copy's bandwidth. *error*: beside torch's in float32."
)
PROMPT_ABOUT: Final = (
    "Microseconds of one layer. *torch*: scaled_dot_product_attention, without pages. *share*: causal attention's"
    " operations over the rate of a product of large square matrices."
)


def attention_of(at: Setup, layout: KvLayout) -> AttentionBackend:
    """The attention of a model on this device, made for its longest context."""
    config = at.config
    return choose_attention(
        "auto", at.device, layout.layer(0), config.num_heads, TORCH_DTYPES[DTYPE], config.context_length
    )


def decodes_in(pages_BP: Tensor, context: int, width: int) -> ModelInput:
    """Decodes at `context` tokens, as a graph for contexts of up to `width` pages has them."""
    batch, used = pages_BP.shape
    lanes = padding(batch, width, PAGE_SIZE, pages_BP.device)
    lanes.page_table_BP[:, :used].copy_(pages_BP)
    return replace(lanes, positions_T=lanes.positions_T + context - 1, seq_lens_B=lanes.seq_lens_B + context - 1)


@dataclass(frozen=True)
class Attended:
    """What attention is given: queries, K and V of as many layers as it takes in turn, and how many bytes of them one
    run reads."""

    q_THD: Tensor
    kv: PagedKv
    num_bytes: int

    def side(self, backend: AttentionBackend, inp: ModelInput) -> Callable[[int], Tensor]:
        """Its runs by this backend. A run takes the next layer, so that no K and V are in a cache."""
        plan, layers = backend.plan(inp, self.kv.layout.layer(0)), self.kv.layout.num_layers
        return lambda index: backend.attend(self.q_THD, self.kv.layer(index % layers), plan)


def attended(at: Setup, num_queries: int, num_pages: int, num_bytes: int, count: int) -> Attended:
    """Random numbers in so many pages of `count` layers."""
    config = at.config
    layout = KvLayout.uniform(count, config.num_kv_heads, config.head_dim, PAGE_SIZE, DTYPE)
    kv = PagedKv(layout, 1 + num_pages, at.device)
    noise(kv)
    shape = (num_queries, config.num_heads, config.head_dim)
    return Attended(torch.randn(shape, dtype=TORCH_DTYPES[DTYPE], device=at.device), kv, num_bytes)


def attended_decodes(at: Setup, batch: int, context: int) -> tuple[Attended, Tensor]:
    """Decodes of one context, and their pages (B, P)."""
    config = at.config
    one = KvLayout.uniform(1, config.num_kv_heads, config.head_dim, PAGE_SIZE, DTYPE)
    num_bytes, used = batch * context * one.all_page_bytes // PAGE_SIZE, one.num_pages(context)
    count = layers_for(num_bytes, config.num_layers, at.size.layers_bytes)
    pages_BP = (1 + torch.randperm(batch * used, device=at.device)).view(batch, used)
    return attended(at, batch, batch * used, num_bytes, count), pages_BP


def attended_prompt(at: Setup, tokens: int) -> tuple[Attended, ModelInput]:
    """A whole prompt."""
    inp = prompt_input(tokens, 0, PAGE_SIZE, at.config.vocab_size, at.device)
    return attended(at, tokens, inp.page_table_BP.shape[1], 0, 1), inp


@torch.inference_mode()
def decodes(sheet: Sheet, at: Setup, batch: int, context: int) -> None:
    """Decodes of one context, compared and timed."""
    case, pages_BP = attended_decodes(at, batch, context)
    q_THD, kv, num_bytes = case.q_THD, case.kv, case.num_bytes
    backend = attention_of(at, kv.layout)
    widths = {"tight": pages_BP.shape[1], "longest": kv.layout.num_pages(at.config.context_length)}
    sides = {name: case.side(backend, decodes_in(pages_BP, context, width)) for name, width in widths.items()}
    tight_THD, longest_THD = (side(0) for side in sides.values())

    wanted_THD = by_torch(q_THD, kv.layer(0), pages_BP[:NUM_CHECKED], context)
    error = relative_error(tight_THD[:NUM_CHECKED], wanted_THD)
    where = f"batch {batch}, context {context:,}"
    if error > BOUND:
        sheet.fault(f"{where}: attention is off by {error:.3g}")
    if not torch.equal(tight_THD, longest_THD):
        sheet.fault(f"{where}: attention captured for the longest context gives other bits")

    seconds_of = timed(sides, runs_for(num_bytes, at.size.graph_bytes), at)
    rate, ratio = num_bytes / seconds_of["tight"], seconds_of["longest"] / seconds_of["tight"]
    share = rate / at.limits.copy_bytes_s
    cells: dict[str, Value] = {"batch": batch, "context": context, "tight": seconds_of["tight"] * 1e6}
    cells |= {"GB/s": rate / 1e9, "share": share, "longest": seconds_of["longest"] * 1e6}
    sheet.row("Attention of decodes", {**cells, "longest / tight": ratio, "error": shown(error)}, DECODE_ABOUT)
    sheet.goal(f"{where}: longest / tight", ratio, "at most", LONGEST_RATIO)
    if (batch, context) == at.size.judged_share:
        sheet.goal(f"{where}: share of a device copy", share, "at least", BANDWIDTH_SHARE)


def by_torch(q_BHD: Tensor, kv_layer: Tensor, pages_BP: Tensor, context: int) -> Tensor:
    """The attention of the first decodes, one for each row of pages, by torch in float32."""
    k_BSKD, v_BSKD = (kv_layer[pages_BP, side].flatten(1, 2)[:, :context].float() for side in (0, 1))
    q_BH1D = q_BHD[: len(pages_BP), :, None].float()
    out_BH1D = F.scaled_dot_product_attention(q_BH1D, k_BSKD.transpose(1, 2), v_BSKD.transpose(1, 2), enable_gqa=True)
    return out_BH1D[:, :, 0]


@torch.inference_mode()
def prompt(sheet: Sheet, at: Setup, tokens: int) -> None:
    """A whole prompt, compared and timed."""
    case, inp = attended_prompt(at, tokens)
    q_THD, kv = case.q_THD, case.kv
    ours = case.side(attention_of(at, kv.layout), inp)
    k_TKD, v_TKD = (kv.layer(0)[1:, side].flatten(0, 1)[:tokens] for side in (0, 1))
    q_1HTD, k_1KTD, v_1KTD = (tensor.transpose(0, 1)[None].contiguous() for tensor in (q_THD, k_TKD, v_TKD))

    def torchs(_index: int) -> Tensor:
        return F.scaled_dot_product_attention(q_1HTD, k_1KTD, v_1KTD, is_causal=True, enable_gqa=True)

    error = relative_error(ours(0), torchs(0)[0].transpose(0, 1))
    if error > BOUND:
        sheet.fault(f"a prompt of {tokens:,} tokens: attention is off by {error:.3g}")
    seconds_of = timed({"ours": ours, "torch": torchs}, FEWEST_RUNS, at)
    flops = attention_flops(at.config, tokens)
    shares = {name: flops / seconds / at.limits.product_flops_s for name, seconds in seconds_of.items()}
    cells: dict[str, Value] = {"tokens": tokens, "ours": seconds_of["ours"] * 1e6, "torch": seconds_of["torch"] * 1e6}
    cells |= {
        "ours / torch": seconds_of["ours"] / seconds_of["torch"],
        "share": shares["ours"],
        "torch's share": shares["torch"],
    }
    sheet.row("Attention of a prompt", {**cells, "error": shown(error)}, PROMPT_ABOUT)


def layers_for(layer_bytes: int, num_layers: int, layers_bytes: int) -> int:
    """How many layers of KV attention takes in turn: those of the model if there is room, else some; at least two."""
    return max(2, min(num_layers, layers_bytes // layer_bytes))
