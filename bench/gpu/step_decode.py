"""Decode steps of Qwen3-8B's shape: with overlap and without, with graphs and without, beside the forward alone.

    floor      the bytes that a step must read, divided by the bandwidth of a device copy
    forward    the launches of a step again and again, alone
    overlap    a unified worker that decodes, two launches in flight; serial: one
    host       the time of its thread in a step of the serial worker

Prompts are not computed: their KV is random.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

import torch

from bench.gpu.decoders import Decoder, decoders
from bench.gpu.records import Value
from bench.gpu.shape import decode_bytes, device_runner, words_of
from bench.gpu.sheet import Sheet
from bench.gpu.timing import Limits, measured_limits
from bench.overlap.decoding import PAGE_SIZE, Plan, num_pages
from model.runner import ModelRunner

FREE_SHARE: Final = 0.9  # share of free device memory that KV may take
JUDGED_BATCHES: Final = (1, 32)
FLOOR_SHARE, OVERLAP_RATIO = 0.8, 1.02
ABOUT: Final = (
    "Milliseconds, medians over rounds in turns. *forward*: launches back to back, resolving and sampling included."
    " *floor*: weights and KV read once at the bandwidth above. *host*: the scheduler thread's work in a serial step."
)


@dataclass(frozen=True)
class Size:
    """What is decoded. The first batches and contexts matter most."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    steps: int
    rounds: int
    part_s: float  # the greatest time of one batch and context


SIZES: Final = {
    "cuda": Size((1, 32, 128, 256), (1024, 8192), steps=20, rounds=5, part_s=70),
    "cpu": Size((1, 3), (17, 40), steps=3, rounds=2, part_s=30),
}


@dataclass(frozen=True)
class Times:
    """Milliseconds of one step, with graphs or without."""

    forward: float
    overlap: float
    serial: float
    host: float


def measure(sheet: Sheet, device: str) -> None:
    """Runs the step."""
    torch.set_num_threads(1 if device == "cpu" else torch.get_num_threads())
    size, runner = SIZES[device], device_runner(device, PAGE_SIZE)
    limits = measured_limits(runner.device)
    sheet.note(
        f"{words_of(runner.config, device)};"
        f" a device copy moves {limits.copy_bytes_s / 1e9:,.0f} GB/s, read plus written"
    )

    for context in size.contexts:
        for batch in size.batches:
            what = f"batch {batch}, context {context:,}"
            plan = Plan(context, size.steps, size.rounds)
            if missing := _missing_bytes(runner, batch, plan):
                sheet.note(f"left out: {what}: its KV takes {missing / 1e9:,.0f} GB, more than the device has left")
                continue
            sheet.part(what, size.part_s, partial(_one, sheet, runner, limits, batch, plan))


def _missing_bytes(runner: ModelRunner, batch: int, plan: Plan) -> int:
    """The size of the KV, if the device has not enough memory for it; else 0."""
    layout = runner.kv_layout(PAGE_SIZE)
    needed = layout.pool_bytes(num_pages(runner, batch, plan.max_context))
    if runner.device.type == "cpu":
        return 0
    free, _ = torch.cuda.mem_get_info(runner.device)
    return needed if needed > free * FREE_SHARE else 0


def _one(sheet: Sheet, runner: ModelRunner, limits: Limits, batch: int, plan: Plan) -> None:
    mean_context = plan.context + plan.num_tokens // 2
    num_bytes = decode_bytes(runner.config, runner.kv_layout(PAGE_SIZE), batch, mean_context)
    floor = num_bytes / limits.copy_bytes_s * 1e3
    with_graphs = "yes" if runner.device.type == "cuda" else "stand-in"
    with decoders(runner, batch, plan) as ways:
        for graphs, times in timed(ways, plan).items():
            cells: dict[str, Value] = {"batch": batch, "context": plan.context}
            cells |= {"graphs": with_graphs if graphs else "no", "floor": floor, **vars(times)}
            ratios = {"floor / forward": floor / times.forward, "overlap / forward": times.overlap / times.forward}
            ratios |= {"host / serial": times.host / times.serial}
            sheet.row("A decode step", {**cells, **ratios}, ABOUT)
            if graphs:
                _judge(sheet, batch, plan.context, ratios)


def _judge(sheet: Sheet, batch: int, context: int, ratios: dict[str, float]) -> None:
    where = f"batch {batch}, context {context:,}, graphs"
    if batch in JUDGED_BATCHES:
        sheet.goal(f"{where}: floor / forward", ratios["floor / forward"], "at least", FLOOR_SHARE)
    sheet.goal(f"{where}: overlap / forward", ratios["overlap / forward"], "at most", OVERLAP_RATIO)


def timed(ways: Sequence[Decoder], plan: Plan) -> dict[bool, Times]:
    """Every way in turn, round by round. After a round its last launch is timed alone."""
    steps: list[list[float]] = [[] for _ in ways]
    hosts: list[list[float]] = [[] for _ in ways]
    forwards: dict[bool, list[float]] = {way.graphs: [] for way in ways}

    for turn in range(plan.rounds):
        order = range(len(ways)) if turn % 2 == 0 else reversed(range(len(ways)))
        for index in order:
            way = ways[index]
            steps[index].append(way.decoding.run(plan.steps))
            hosts[index].append(way.decoding.host_s / plan.steps)
            way.stream.record().synchronize()
            forwards[way.graphs].append(median(way.stream.replay(plan.steps)))

    found = {}
    for graphs, forward in forwards.items():
        [overlap] = [index for index, way in enumerate(ways) if way.graphs == graphs and way.overlap]
        [serial] = [index for index, way in enumerate(ways) if way.graphs == graphs and not way.overlap]
        each = (forward, steps[overlap], steps[serial], hosts[serial])
        found[graphs] = Times(*(median(seconds) * 1e3 for seconds in each))
    return found
