"""The Triton kernels of a layer beside torch's operations, for Qwen3-8B's shape, in CUDA graphs of many runs.

    norm         of a layer's input
    added norm   adds to the residual stream and norms the sum
    place        norms and rotates q and k, writes K and V to their pages
    gate         silu(gate) * up
    attention    see kernel_attention.py

Results are compared, too: one that is off fails the step. On a CPU torch's passes and the CPU's attention stand in for
the kernels.
Shapes: T tokens, E hidden, N heads of q and k, D head_dim, F frequencies.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

import torch
from torch import Tensor

from bench.device_seconds import seconds_each
from bench.gpu.kernel_attention import decodes, prompt
from bench.gpu.kernel_sides import (
    BANDWIDTH_SHARE,
    MOST_RUNS,
    Setup,
    Size,
    inputs_for,
    relative_error,
    runs_for,
    shown,
    timed,
)
from bench.gpu.shape import DTYPE, QWEN3_8B, TINY, config_of, words_of_graphs
from bench.gpu.sheet import StepSheet
from bench.gpu.timing import measured_limits
from bench.records import Value
from bench.step.decoding import PAGE_SIZE
from model.paged_kv import TORCH_DTYPES, PagedKv
from model.passes import Passes, TorchPasses, inverse_frequencies
from model.runner import passes_of
from protocol.kv_layout import KvLayout
from runtime.model_config import ModelConfig

BOUNDS: Final = {"float32": 1e-5, "bfloat16": 1e-2}  # of a pass's error beside torch's
UNWRITTEN: Final = 7168.0  # in pages: exact in every dtype, and far from any K or V
RESULTS_ABOUT: Final = (
    "Of the fused passes beside torch's. *error*: the norm of the difference over the norm of torch's. V and all other"
    " slots of the pages are the same."
)
PASSES_ABOUT: Final = (
    "Microseconds of one pass; *torch* and *fused* in a graph of many runs on several inputs, which together do not fit"
    " into a cache; *eager*: without a graph. *MB*: bytes that must move; *share*: of a device copy's bandwidth."
)
SIZES: Final = {
    "cuda": Size(
        (1, 32, 256, 2048), (1, 2048), ((32, 1024), (256, 1024), (1, 1024), (32, 8192)), (32, 8192), (2048,),
        cold_bytes=200 << 20, layers_bytes=5 << 30, graph_bytes=2 << 30, rounds=3, replays=5, part_s=10,
    ),
    "cpu": Size(
        (1, 5), (1, 5), ((2, 17), (1, 40)), (1, 40), (33,),
        cold_bytes=1 << 16, layers_bytes=1 << 16, graph_bytes=1 << 16, rounds=2, replays=2, part_s=30,
    ),
}  # fmt: skip


def measure_passes(sheet: StepSheet, device: str) -> None:
    """Runs the step `passes`."""
    size, config = SIZES[device], config_of(QWEN3_8B if device == "cuda" else TINY)
    at = Setup(config, torch.device(device), size, measured_limits(torch.device(device)))
    sheet.note(
        f"{words_of_kernels(device)}, {words_of_graphs(device)} of up to {MOST_RUNS} runs, {config.num_heads} heads and"
        f" {config.num_kv_heads} KV heads of {config.head_dim}, intermediate"
        f" {config.layers[0].feed.active_width:,}, {DTYPE}, pages of {PAGE_SIZE}; {at.limits.words}"
    )

    for rows in size.rows:
        for make in (norming, adding, placing, gating):
            sheet.part(f"{make.__name__}, rows {rows:,}", size.part_s, partial(_pass, sheet, at, make, rows))
    for batch, context in size.decodes:
        what = f"attention of {batch} decodes at {context:,} tokens"
        sheet.part(what, size.part_s, partial(decodes, sheet, at, batch, context))
    for tokens in size.prompts:
        sheet.part(f"attention of {tokens:,} tokens", size.part_s, partial(prompt, sheet, at, tokens))


def words_of_kernels(device: str) -> str:
    """What runs as the kernels here."""
    return "Triton's kernels" if device == "cuda" else "torch's operations as a stand-in for the kernels"


# ---- the passes ----


@dataclass(frozen=True)
class Pass:
    """One pass with inputs on the device. `run` takes the passes and the number of the run."""

    name: str
    num_bytes: int  # that must move
    run: Callable[[Passes, int], Tensor | tuple[Tensor, Tensor]]
    kv: PagedKv | None = None  # where it also writes: K and V of the first inputs' rows

    def written(self, passes: Passes) -> list[Tensor]:
        """All that one run writes, in float32: its results as one tensor; then a copy of the pages."""
        pages = () if self.kv is None else (self.kv.layer(0).fill_(UNWRITTEN),)
        results = self.run(passes, 0)
        result = results if isinstance(results, Tensor) else torch.stack(results)
        return [result.float(), *(page.float().clone() for page in pages)]


MakePass = Callable[[Setup, int, str], Pass]  # of so many rows, in this dtype


def norming(at: Setup, rows: int, dtype: str) -> Pass:
    """`rms_norm` of `rows` tokens."""
    num_bytes = norm_bytes(at.config, rows, TORCH_DTYPES[dtype].itemsize, 2)
    count, kind = inputs_for(num_bytes, at.size), TORCH_DTYPES[dtype]
    xs = torch.randn(count, rows, at.config.hidden_size, dtype=kind, device=at.device)
    weight_E = torch.randn(at.config.hidden_size, dtype=kind, device=at.device)
    return Pass("norm", num_bytes, lambda passes, index: passes.rms_norm(xs[index % count], weight_E))


def adding(at: Setup, rows: int, dtype: str) -> Pass:
    """`added_norm` of `rows` tokens."""
    num_bytes = norm_bytes(at.config, rows, TORCH_DTYPES[dtype].itemsize, 4)
    count, kind = inputs_for(num_bytes, at.size), TORCH_DTYPES[dtype]
    both = torch.randn(2, count, rows, at.config.hidden_size, dtype=kind, device=at.device)
    weight_E = torch.randn(at.config.hidden_size, dtype=kind, device=at.device)

    def run(passes: Passes, index: int) -> tuple[Tensor, Tensor]:
        residual_TE, y_TE = both[:, index % count]
        return passes.added_norm(residual_TE, y_TE, weight_E)

    return Pass("added norm", num_bytes, run)


def placing(at: Setup, rows: int, dtype: str) -> Pass:
    """`place` of `rows` tokens, whose slots are scattered over the pages. q is contiguous, as attention needs it."""
    config, kind = at.config, TORCH_DTYPES[dtype]
    num_bytes = place_bytes(config, rows, kind.itemsize)
    count, num_heads = inputs_for(num_bytes, at.size), config.num_heads + config.num_kv_heads
    layout = KvLayout.uniform(1, config.num_kv_heads, config.head_dim, PAGE_SIZE, dtype)
    kv = PagedKv(layout, 1 + layout.num_pages(rows * count), at.device)
    slots = (torch.randperm(rows * count, device=at.device) + PAGE_SIZE).split(rows)

    width = (num_heads + config.num_kv_heads) * config.head_dim
    qkvs = [(torch.randn(rows, width, dtype=kind, device=at.device),) for _ in slots]
    places = [kv.token_rows(slot) for slot in slots]
    norm_ND = torch.randn(num_heads, config.head_dim, dtype=kind, device=at.device)
    angles_F = inverse_frequencies(config.rope, config.head_dim).to(at.device)
    rotation = TorchPasses(config.num_heads, config.head_dim, config.rms_norm_eps).rotation(
        torch.randint(config.context_length, (rows,), device=at.device), angles_F
    )

    def run(passes: Passes, index: int) -> Tensor:
        own = index % count
        return passes.place(qkvs[own], norm_ND, rotation, kv, 0, places[own]).contiguous()

    return Pass("place", num_bytes, run, kv)


def gating(at: Setup, rows: int, dtype: str) -> Pass:
    """`gated` of `rows` tokens."""
    width, kind = 2 * at.config.layers[0].feed.active_width, TORCH_DTYPES[dtype]
    num_bytes = gate_bytes(at.config, rows, kind.itemsize)
    count = inputs_for(num_bytes, at.size)
    boths = [torch.randn(rows, width, dtype=kind, device=at.device) for _ in range(count)]
    return Pass("gate", num_bytes, lambda passes, index: passes.gated((boths[index % count],)))


def norm_bytes(config: ModelConfig, rows: int, item_bytes: int, count: int) -> int:
    """`count` rows are read or written for each token; the weight is read once."""
    return (rows * count + 1) * config.hidden_size * item_bytes


def place_bytes(config: ModelConfig, rows: int, item_bytes: int) -> int:
    """q, k and v are read and written once; of each row the rotation and two numbers of rows; the norms once."""
    q, k = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return rows * (2 * (q + 2 * k) * item_bytes + 2 * config.head_dim * 4 + 2 * 8) + (q + k) * item_bytes


def gate_bytes(config: ModelConfig, rows: int, item_bytes: int) -> int:
    """Gate and up are read, their product is written."""
    return rows * 3 * config.layers[0].feed.active_width * item_bytes


@torch.inference_mode()
def _pass(sheet: StepSheet, at: Setup, make: MakePass, rows: int) -> None:
    """Compares in both dtypes, then times in that of the model."""
    fused = passes_of(at.config, at.device)
    if at.device.type == "cuda" and type(fused) is TorchPasses:
        raise RuntimeError("Triton is not installed: the model has no fused passes here")
    plain = TorchPasses(fused.num_heads, fused.head_dim, fused.eps)
    for dtype, bound in BOUNDS.items():
        own = make(at, rows, dtype)
        error, wrong = difference(own.written(fused), own.written(plain))
        if wrong or error > bound:
            sheet.fault(f"{own.name}, {rows:,} rows, {dtype}: {wrong or f'off by {error:.3g}'}")
        cells: dict[str, Value] = {"pass": own.name, "rows": rows, "dtype": dtype}
        sheet.row("Results", {**cells, "error": shown(error), "bound": bound}, RESULTS_ABOUT)

    own = make(at, rows, DTYPE)
    sides = {"torch": partial(own.run, plain), "fused": partial(own.run, fused)}
    seconds_of = timed(sides, runs_for(own.num_bytes, at.size.graph_bytes), at)
    rate = own.num_bytes / seconds_of["fused"]
    share, ratio = rate / at.limits.copy_bytes_s, seconds_of["torch"] / seconds_of["fused"]
    cells = {"pass": own.name, "rows": rows, "MB": own.num_bytes / 1e6}
    cells |= {name: seconds * 1e6 for name, seconds in seconds_of.items()}
    cells |= {"torch / fused": ratio, "GB/s": rate / 1e9, "share": share}
    for name, run in sides.items():
        is_eager = rows in at.size.eager_rows
        cells[f"{name}, eager"] = median(seconds_each(partial(run, 0), 20, at.device)) * 1e6 if is_eager else None
    sheet.row("A pass", cells, PASSES_ABOUT)
    sheet.goal(f"{own.name}, {rows:,} rows: torch / fused", ratio, "at least", 1.0)
    if rows == max(at.size.rows):
        sheet.goal(f"{own.name}, {rows:,} rows: share of a device copy", share, "at least", BANDWIDTH_SHARE)


def difference(computed: list[Tensor], wanted: list[Tensor]) -> tuple[float, str]:
    """The largest error of what was written, and what must not differ at all but does. See Pass.written."""
    (result, *pages), (wanted_result, *wanted_pages) = computed, wanted
    errors, wrong = [relative_error(result, wanted_result)], ""
    for own, theirs in zip(pages, wanted_pages, strict=True):
        is_unwritten = theirs == UNWRITTEN
        if not torch.equal(own == UNWRITTEN, is_unwritten):
            wrong = "other slots are written"
        elif not torch.equal(own[:, 1], theirs[:, 1]):
            wrong = "V is not the same"
        errors.append(
            relative_error(*(pages_of_side.masked_fill(is_unwritten, 0.0) for pages_of_side in (own, theirs)))
        )
    return max(errors), wrong
