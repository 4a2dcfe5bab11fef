"""Other sizes for the attention kernels, for Qwen3-8B's shape: which are fastest is set in model/attention_triton.py.

Each line is one change from the sizes that a model has. Sizes that do not fit into the device have no times. On a CPU
the CPU's attention stands in.
Shapes: T tokens, B requests, P pages of a context, H query heads, D head_dim.
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Final

import torch
from torch import Tensor

from bench.gpu.kernel_attention import Attended, attended_decodes, attended_prompt, attention_of, decodes_in
from bench.gpu.kernel_sides import FEWEST_RUNS, Setup, relative_error, runs_for, shown, timed
from bench.gpu.shape import DTYPE, QWEN3_8B, TINY, config_of
from bench.gpu.sheet import StepSheet
from bench.gpu.step_kernels import SIZES, words_of_kernels
from bench.gpu.timing import Limits
from bench.records import Value
from bench.step.decoding import PAGE_SIZE
from model.attention import AttentionBackend
from model.inputs import ModelInput
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
        for table, cases, change in zip(("Prompts", "Decodes"), (prompts, decodes), both, strict=True):
            if change is not None:
                what = f"{table}, {words(change)}"
                sheet.part(what, PART_S, partial(_variant, sheet, at, table, change, cases, wanted))


def words(change: Change) -> str:
    """The fields that differ."""
    return ", ".join(f"{name} {value}" for name, value in change.items()) or "as they are"


@dataclass(frozen=True)
class Case:
    """What is attended, with which input, and how many runs a graph has."""

    attended: Attended
    inp: ModelInput
    runs: int


def prompt_of(at: Setup, tokens: int) -> Case:
    """A whole prompt."""
    return Case(*attended_prompt(at, tokens), FEWEST_RUNS)


def decodes_of(at: Setup, batch: int, context: int) -> Case:
    """Decodes of one context."""
    attended, pages_BP = attended_decodes(at, batch, context)
    runs = max(FEWEST_RUNS, runs_for(attended.num_bytes, at.size.graph_bytes) // 2)
    return Case(attended, decodes_in(pages_BP, context, pages_BP.shape[1]), runs)


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
    sheet: StepSheet, at: Setup, table: str, change: Change, cases: dict[str, Case], wanted: dict[str, Tensor]
) -> None:
    """One line. The first of a table tells what the others must compute."""
    backend, errors = attention_with(at, change), []
    cells: dict[str, Value] = {"sizes": words(change), **dict.fromkeys(cases)}
    for name, case in cases.items():
        try:
            run = case.attended.side(backend, case.inp)
            found = run(0)
            error = relative_error(found, wanted.setdefault(name, found))
            cells[name] = timed({name: run}, case.runs, at)[name] * 1e6
        except unfit() as why:
            sheet.note(f"{words(change)}: {type(why).__name__}")
            break
        errors.append(error)
        if error > BOUND:
            sheet.fault(f"{table}, {words(change)}, {name}: off by {error:.3g}")
    sheet.row(table, {**cells, "error": shown(max(errors)) if errors else None}, ABOUT)
