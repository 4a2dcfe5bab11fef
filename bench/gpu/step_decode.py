"""Decode steps of Qwen3-8B's shape: with overlap and without, with graphs and without, beside the forward alone.

    floor      the bytes that a step must read, divided by the bandwidth of a device copy
    forward    the launches of a step again and again, alone
    overlap    a unified worker that decodes, two launches in flight; serial: one
    host       the time of its thread in a step of the serial worker

Prompts are not computed: their KV is random. The step `profile` traces a few steps, for Chrome and Perfetto, and lists
the kernels that take most of the time.
"""

import gzip
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from bench.gpu.records import Value
from bench.gpu.shape import (
    WithoutPrompts,
    decode_bytes,
    device_runner,
    maker_of_graphs,
    noise,
    words_of,
    words_of_graphs,
)
from bench.gpu.sheet import Sheet
from bench.gpu.timing import Limits, ReplayedCudaStream, measured_limits
from bench.overlap.decoding import PAGE_SIZE, Decoding, Plan, Replayed, ReplayedStream, executor_on, num_pages
from bench.turns import in_turn
from model.graphs import GraphedRunner
from model.paged_kv import PagedKv
from model.runner import ModelRunner
from runtime.clock import MonotonicClock
from scheduler.execution.streams import InlineStream, Stream
from scheduler.execution.streams_cuda import CudaStream
from scheduler.execution.warm_up import warm_up

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
    "cuda": Size((1, 32, 128, 256), (1024, 8192), steps=20, rounds=5, part_s=25),
    "cpu": Size((1, 3), (17, 40), steps=3, rounds=2, part_s=30),
}


@dataclass(frozen=True)
class Times:
    """Milliseconds of one step, with graphs or without."""

    forward: float
    overlap: float
    serial: float
    host: float


def measure_decode(sheet: Sheet, device: str) -> None:
    """Runs the step `decode`."""
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


def timed(ways: "Sequence[Decoder]", plan: Plan) -> dict[bool, Times]:
    """Every way in turn, round by round. After a round its last launch is timed alone."""
    steps: list[list[float]] = [[] for _ in ways]
    hosts: list[list[float]] = [[] for _ in ways]
    forwards: dict[bool, list[float]] = {way.graphs: [] for way in ways}

    for turn in range(plan.rounds):
        for index in in_turn(range(len(ways)), turn):
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


# ---- workers that decode, to be timed ----


@dataclass
class Decoder:
    """One way to decode, started."""

    graphs: bool
    overlap: bool
    decoding: Decoding
    stream: Replayed


@contextmanager
def decoders(
    runner: ModelRunner, batch: int, plan: Plan, graphs: tuple[bool, ...] = (True, False)
) -> Iterator[list[Decoder]]:
    """For each way of `graphs`, a worker with overlap and one without, decoding `batch` requests of the plan."""
    kv = PagedKv(runner.kv_layout(PAGE_SIZE), num_pages(runner, batch, plan.max_context), runner.device)
    noise(kv)

    found: list[Decoder] = []
    try:
        for with_graphs in graphs:
            own = WithoutPrompts(runner, maker_of_graphs(runner.device))
            if with_graphs:
                max_pages = kv.layout.num_pages(plan.max_context)
                warm_up(own, kv, new_stream(runner.device), max_requests=batch, max_pages=max_pages)
            found += [_started(own, kv, batch, plan, with_graphs, overlap) for overlap in (True, False)]
            if with_graphs and not own.num_replays:
                raise RuntimeError("no graphs could be captured; the log says why")

        yield found
    finally:
        for each in found:
            each.decoding.executor.close()


def _started(runner: GraphedRunner, kv: PagedKv, batch: int, plan: Plan, graphs: bool, overlap: bool) -> Decoder:
    stream, device = new_stream(runner.device), runner.device
    schedule: Stream = CudaStream(torch.cuda.current_stream(device)) if device.type == "cuda" else InlineStream()
    executor = executor_on(kv, runner, batch, plan.max_context, stream, schedule)
    decoding = Decoding.on(executor, stream, MonotonicClock(), overlap=overlap)
    decoding.start(batch, plan.context, plan.num_tokens)
    return Decoder(graphs, overlap, decoding, stream)


def new_stream(device: torch.device) -> Replayed:
    """A new forward stream."""
    if device.type == "cuda":
        return ReplayedCudaStream(device)
    return ReplayedStream(os.sched_getaffinity(0), 1, MonotonicClock())


# ---- a trace ----

TRACE: Final = "decode-trace.json.gz"
MAX_BYTES: Final = 16 << 20  # the largest file that a GPU machine returns
NUM_ROWS: Final = 12
TRACED_STEPS: Final = 4
TRACE_ABOUT: Final = "Sums over all steps of the trace."


def measure_profile(sheet: Sheet, device: str) -> None:
    """Runs the step `profile`, with graphs and overlap, as a worker decodes."""
    is_gpu = device == "cuda"
    batch, context = (32, 1024) if is_gpu else (2, 17)
    plan = Plan(context, TRACED_STEPS, rounds=2)
    runner = device_runner(device, PAGE_SIZE)
    how = f"{words_of_graphs(device)} and overlap"
    sheet.note(f"batch {batch}, context {context:,}, {TRACED_STEPS} steps, {how}; {words_of(runner.config, device)}")

    with decoders(runner, batch, plan, graphs=(True,)) as ways:
        [way] = [each for each in ways if each.overlap]
        found = traced(way.decoding, is_gpu)

    size = compress(found, sheet.folder.path / TRACE)
    if size > MAX_BYTES:
        sheet.fault(f"{TRACE} has {size / 1e6:.1f} MB, more than comes back from a GPU machine")
    sheet.note(f"{TRACE}: {size / 1e6:.3g} MB, for chrome://tracing or ui.perfetto.dev")

    for cells in top_rows(found.key_averages(), is_gpu):
        sheet.row("What takes the time" if is_gpu else "What takes the host's time", cells, TRACE_ABOUT)


def traced(decoding: Decoding, is_gpu: bool) -> Any:
    """The profile of some steps."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with profile(activities=activities) as found:
        decoding.run(TRACED_STEPS)
        if is_gpu:
            torch.cuda.synchronize()
    return found


def compress(found: Any, target: Path) -> int:
    """Writes the trace. Returns its bytes."""
    with tempfile.TemporaryDirectory(prefix="baton-gpu-") as folder:
        plain = Path(folder) / "trace.json"
        found.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(target, "wb") as packed:
            shutil.copyfileobj(source, packed)
    return target.stat().st_size


def top_rows(averages: Iterable[Any], is_gpu: bool) -> list[dict[str, str | int | float]]:
    """The kernels (on a CPU, the operations) that took longest."""

    def microseconds(each: Any) -> float:
        return float(each.self_device_time_total if is_gpu else each.self_cpu_time_total)

    wanted = DeviceType.CUDA if is_gpu else DeviceType.CPU
    ordered = sorted((each for each in averages if each.device_type == wanted), key=microseconds, reverse=True)
    total = sum(map(microseconds, ordered)) or 1.0
    return [
        {"name": f"`{each.key[:70]}`", "calls": each.count, "ms": microseconds(each) / 1e3}
        | {"share": microseconds(each) / total}
        for each in ordered[:NUM_ROWS]
    ]
