"""Other sizes for the attention kernels, for Qwen3-8B's shape: which are fastest is set in model/attention_triton.py.

Each line is one change from the sizes that a model has. Sizes that do not fit into the device have no times. On a CPU
the CPU's attention stands in.
Shapes: T tokens, B requests, P pages of a context, H query heads, D head_dim.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Final

import torch
from torch import Tensor

from bench.gpu.kernel_attention import attention_of, decodes_in
from bench.gpu.kernel_sides import FEWEST_RUNS, Setup, relative_error, runs_for, shown, timed
from bench.gpu.shape import DTYPE, QWEN3_8B, TINY, config_of, noise, prompt_input
from bench.gpu.sheet import StepSheet
from bench.gpu.step_kernels import SIZES, words_of_kernels
from bench.gpu.timing import Limits
from bench.records import Value
from bench.step.decoding import PAGE_SIZE
from model.attention import AttentionBackend
from model.paged_kv import TORCH_DTYPES, PagedKv
from protocol.kv_layout import KvLayout

Change = dict[str, int]  # of fields of Sizes
BOUND: Final = 1e-2  # of the error beside the sizes that a model has
PART_S: Final = 1.5  # a kernel is compiled, and its graphs are replayed
PROMPTS: Final = {"cuda": (2048, 8192), "cpu": (33,)}
DECODES: Final = {"cuda": ((1, 1024), (32, 1024), (256, 1024), (32, 8192)), "cpu": ((2, 17),)}
# Triton 3.6 makes the same code for four stages as for three: the pages of a step are loaded before its K and V.
TILES: Final[tuple[Change, ...]] = (
    {},
    {"tile_rows": 128, "tile_warps": 8},
    {"tile_rows": 128, "tile_warps": 8, "tile_step": 128, "tile_stages": 2},
    {"tile_rows": 128, "tile_warps": 8, "tile_stages": 2},
    {"tile_rows": 128, "tile_warps": 4},
    {"tile_step": 128, "tile_stages": 2},
    {"tile_stages": 2},
    {"tile_rows": 128, "tile_warps": 8, "tile_step": 32},
    {"tile_step": 32},
)
SPLITS: Final[tuple[Change, ...]] = (
    {},
    {"combined_warps": 1},
    {"combined": 4, "combined_warps": 1},
    {"combined": 4, "combined_heads": 4, "combined_warps": 2},
    {"combined": 4, "combined_heads": 8, "combined_warps": 4},
    {"split_stages": 2},
    {"split_step": 32},
    {"split_step": 128, "split_stages": 2},
    {"split_step": 128, "split_warps": 8},
    {"split_warps": 2},
    {"split_warps": 8},
    {"programs_per_sm": 8},
    {"programs_per_sm": 2},
    {"split_step": 32, "split_warps": 2, "programs_per_sm": 8},
)
ABOUT: Final = (
    "Microseconds of one layer. *sizes*: what differs from those that a model has, which are the first line. -: these"
    " sizes do not fit into the device. *error*: the largest, beside the first line."
)


def measure_variants(sheet: StepSheet, device: str) -> None:
    """Runs the step `variants`."""
    config = config_of(QWEN3_8B if device == "cuda" else TINY)
    at = Setup(config, torch.device(device), replace(SIZES[device], rounds=2, replays=3), Limits(1.0, 1.0))
    sheet.note(f"{words_of_kernels(device)}, {config.num_heads} heads and {config.num_kv_heads} KV heads, {DTYPE}")
    prompts = {f"{tokens:,} tokens": prompt_of(at, tokens) for tokens in PROMPTS[device]}
    decodes = {f"{batch} x {context:,}": decodes_of(at, batch, context) for batch, context in DECODES[device]}

    # In turn, so that the most promising ones of both have been measured when the time is over.
    wanted: dict[str, Tensor] = {}
    for both in zip_longest(TILES, SPLITS):
        for table, sides, change in zip(("Prompts", "Decodes"), (prompts, decodes), both, strict=True):
            if change is not None:
                what = f"{table}, {words(change)}"
                sheet.part(what, PART_S, partial(_variant, sheet, at, table, change, sides, wanted))


def words(change: Change) -> str:
    """The fields that differ."""
    return ", ".join(f"{name} {value}" for name, value in change.items()) or "as they are"


Side = Callable[[AttentionBackend], tuple[Callable[[int], Tensor], int]]  # a run, and how many are in a graph


def prompt_of(at: Setup, tokens: int) -> Side:
    """A whole prompt."""
    config = at.config
    layout = KvLayout.uniform(1, config.num_kv_heads, config.head_dim, PAGE_SIZE, DTYPE)
    kv = PagedKv(layout, 1 + layout.num_pages(tokens), at.device)
    noise(kv)
    q_THD = torch.randn(tokens, config.num_heads, config.head_dim, dtype=TORCH_DTYPES[DTYPE], device=at.device)
    inp = prompt_input(tokens, 0, PAGE_SIZE, config.vocab_size, at.device)

    def side(backend: AttentionBackend) -> tuple[Callable[[int], Tensor], int]:
        plan = backend.plan(inp, layout.layer(0))
        return lambda _index: backend.attend(q_THD, kv.layer(0), plan), FEWEST_RUNS

    return side


def decodes_of(at: Setup, batch: int, context: int) -> Side:
    """Decodes of one context. Runs take two layers in turn, or more, so that K and V are in no cache."""
    config = at.config
    one = KvLayout.uniform(1, config.num_kv_heads, config.head_dim, PAGE_SIZE, DTYPE)
    used = one.num_pages(context)
    num_bytes = batch * used * one.all_page_bytes
    count = max(2, min(config.num_layers, -(-at.size.cold_bytes // num_bytes)))
    kv = PagedKv(
        KvLayout.uniform(count, config.num_kv_heads, config.head_dim, PAGE_SIZE, DTYPE), 1 + batch * used, at.device
    )
    noise(kv)
    pages_BP = (1 + torch.randperm(batch * used, device=at.device)).view(batch, used)
    q_BHD = torch.randn(batch, config.num_heads, config.head_dim, dtype=TORCH_DTYPES[DTYPE], device=at.device)
    inp = decodes_in(pages_BP, context, used)

    def side(backend: AttentionBackend) -> tuple[Callable[[int], Tensor], int]:
        plan = backend.plan(inp, one.layer(0))
        runs = max(FEWEST_RUNS, runs_for(num_bytes, at.size.graph_bytes) // 2)
        return lambda index: backend.attend(q_BHD, kv.layer(index % count), plan), runs

    return side


def attention_with(at: Setup, change: Change) -> AttentionBackend:
    """The attention of a model, with other sizes."""
    layout = KvLayout.uniform(1, at.config.num_kv_heads, at.config.head_dim, PAGE_SIZE, DTYPE)
    if at.device.type == "cpu":
        return attention_of(at, layout)
    from model.attention_triton import TritonAttention, sizes_for  # noqa: PLC0415 - an optional package, for GPUs

    config, sizes = at.config, replace(sizes_for(at.device), **change)
    heads = (config.num_heads, config.num_kv_heads, config.head_dim)
    return TritonAttention(*heads, max(context for _, context in DECODES["cuda"]), at.device, sizes)


def unfit() -> tuple[type[Exception], ...]:
    """What Triton raises for sizes that do not fit into a device."""
    try:
        from triton.runtime.errors import OutOfResources, PTXASError  # noqa: PLC0415 - an optional package
    except ImportError:
        return ()
    return OutOfResources, PTXASError


@torch.inference_mode()
def _variant(
    sheet: StepSheet, at: Setup, table: str, change: Change, sides: dict[str, Side], wanted: dict[str, Tensor]
) -> None:
    """One line. The first of a table tells what the others must compute."""
    backend, errors = attention_with(at, change), []
    cells: dict[str, Value] = {"sizes": words(change), **dict.fromkeys(sides)}
    for name, side in sides.items():
        try:
            run, count = side(backend)
            found = run(0)
            error = relative_error(found, wanted.setdefault(name, found))
            cells[name] = timed({name: run}, count, at)[name] * 1e6
        except unfit() as why:
            sheet.note(f"{words(change)}: {type(why).__name__}")
            break
        errors.append(error)
        if error > BOUND:
            sheet.fault(f"{table}, {words(change)}, {name}: off by {error:.3g}")
    sheet.row(table, {**cells, "error": shown(max(errors)) if errors else None}, ABOUT)
