"""Traces of decode steps of Qwen3-8B's shape, with graphs and overlap: which kernels take the time, and the gaps.

torch's profiler writes a trace for each batch, for chrome://tracing and ui.perfetto.dev; kernels.py reads it. On a CPU
operations of the scheduler's thread stand in for kernels, though one is within another.
"""

import gzip
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu.decoders import Case, Decoder, Way, decoders, fits, random_kv, with_graphs
from bench.gpu.kernels import ON_THE_DEVICE, Event, Total, busy_us, by_kind, by_name, device_events, periods, short
from bench.gpu.kernels import kind_of as kind_of_kernel
from bench.gpu.shape import device_runner, kv_bytes, product_weights, words_of, words_of_graphs
from bench.gpu.sheet import StepSheet
from bench.gpu.timing import measured_copy_bytes_s
from bench.records import Value
from bench.step.decoding import LEAD, PAGE_SIZE, Plan
from model.paged_kv import TORCH_DTYPES
from model.runner import ModelRunner

MAX_BYTES: Final = 5_000_000  # of one trace: few and small files come back from a GPU machine
TRACED_STEPS: Final = 3  # and those that fill the pipeline
NUM_ROWS: Final = 16  # kernels of a batch
ON_THE_HOST: Final = ("cpu_op",)
STEP_ABOUT: Final = (
    "Milliseconds. *step*: without the profiler. *busy*: a kernel ran. *traced*: with the profiler, from one start of a"
    " kernel to its start in the next step. *idle*: no kernel ran, the gaps of a traced step summed. Medians; but the"
    " longest gap of all steps, in microseconds, and the kernel *before* which it was. The profiler makes gaps longer:"
    " without it a step idles about *step* less *busy*."
)
KINDS_ABOUT: Final = (
    "Kernels by kind, which is told from their names: microseconds of a step. *share*: of the time in which the device"
    " was busy. *floor*: weights, or KV, read once at the bandwidth above."
)
KERNELS_ABOUT: Final = (
    "The kernels that take most of a step, in microseconds of a step. *share*: of the time in which the device was"
    " busy; shares add up to more than 1 if kernels of two streams overlap."
)


@dataclass(frozen=True)
class Size:
    """What is traced, the first batch first."""

    batches: tuple[int, ...]
    plan: Plan
    part_s: float  # the greatest time of one batch


SIZES: Final = {
    "cuda": Size((1, 32, 256), Plan(1024, steps=20, rounds=4), part_s=15),
    "cpu": Size((1, 2, 3), Plan(17, steps=4, rounds=4), part_s=30),
}


def measure_trace(sheet: StepSheet, device: str) -> None:
    """Runs the step `trace`, with graphs and overlap, as a worker decodes."""
    size, runner = SIZES[device], device_runner(device, PAGE_SIZE)
    copy_bytes_s = measured_copy_bytes_s(runner.device)
    sheet.note(
        f"context {size.plan.context:,}, {words_of_graphs(device)} and overlap; {words_of(runner.config, device)}; a"
        f" device copy moves {copy_bytes_s / 1e9:,.0f} GB/s, read plus written"
    )

    sheet.part("the profiler", size.part_s, partial(_try_profiler, sheet, runner.device))
    for batch in size.batches:
        case = Case(batch, size.plan)
        sheet.part(str(case), size.part_s, partial(_one, sheet, runner, case, copy_bytes_s))


def _try_profiler(sheet: StepSheet, device: torch.device) -> None:
    """Loads the profiler, and says so if it sees no kernel even of one operation."""
    numbers = torch.randn(64, 64, device=device)
    with profile(activities=_activities(device)) as profiled:
        numbers @ numbers
        _synchronize(device)
    if not device_events(_exported(profiled)[0], _categories(device)):
        sheet.fault("the profiler sees no kernels on this machine: no times of kernels below")


def _one(sheet: StepSheet, runner: ModelRunner, case: Case, copy_bytes_s: float) -> None:
    """Times some steps, traces some more, and writes what the trace says. The file is written first."""
    if not fits(sheet, runner, case):
        return
    kv = random_kv(runner, [case])
    graphs = with_graphs(runner, kv, case.batch, case.plan.max_context)
    with decoders([Way("graphs", graphs, overlaps=(True,))], kv, case) as [worker]:
        step_us = median(worker.decoding.run(case.plan.steps) for _ in range(2)) * 1e6
        profiled, num_steps = traced(worker, runner.device)

    trace, text = _exported(profiled)
    _write(sheet, f"decode-trace-{case.batch}.json.gz", text)
    events = device_events(trace, _categories(runner.device))
    if not events:
        sheet.fault(f"{case}: the trace names no kernel: the profiler does not see into graphs here")
        return

    sheet.row("Where a step's time goes", step_cells(case.batch, events, num_steps, step_us), STEP_ABOUT)
    floors_us = floors(runner, case, copy_bytes_s)
    for cells in kind_rows(case.batch, events, num_steps, floors_us):
        sheet.row("Kinds of kernels", cells, KINDS_ABOUT)
    for cells in kernel_rows(case.batch, events, num_steps):
        sheet.row("Kernels by time", cells, KERNELS_ABOUT)


def traced(worker: Decoder, device: torch.device) -> tuple[Any, int]:
    """The profile of some whole launches, and how many. None is in flight at either end."""
    planner = worker.decoding.worker.planner
    _synchronize(device)
    before = planner.num_launches
    with profile(activities=_activities(device)) as profiled:
        worker.decoding.run(TRACED_STEPS)
        worker.stream.record().synchronize()
        _synchronize(device)
    return profiled, planner.num_launches - before


def floors(runner: ModelRunner, case: Case, copy_bytes_s: float) -> dict[str, float]:
    """The least microseconds of a step's products and attention: what they read, each byte once."""
    weights = product_weights(runner.config) * TORCH_DTYPES[runner.dtype].itemsize
    kv = kv_bytes(runner.kv_layout(PAGE_SIZE), case.batch, case.plan.context)
    return {"products": weights / copy_bytes_s * 1e6, "attention": kv / copy_bytes_s * 1e6}


# ---- rows ----


def kind_rows(
    batch: int, events: Sequence[Event], num_steps: int, floors_us: Mapping[str, float]
) -> list[dict[str, Value]]:
    """A line for each kind of kernel, the longest first."""
    busy, rows = busy_us(events), []
    for total in by_kind(events):
        us, floor = total.us / num_steps, floors_us.get(total.name)
        cells: dict[str, Value] = {"batch": batch, "kind": total.name, "calls": total.calls / num_steps, "us": us}
        ratio = None if floor is None else floor / us
        rows.append({**cells, "share": total.us / busy, "floor": floor, "floor / us": ratio})
    return rows


def kernel_rows(batch: int, events: Sequence[Event], num_steps: int) -> list[dict[str, Value]]:
    """A line for each of the kernels that take longest, and one for all others together."""
    busy, totals = busy_us(events), by_name(events)
    rows = [_kernel(batch, f"`{short(total.name)}`", kind_of_kernel(total.name), total, num_steps, busy)
            for total in totals[:NUM_ROWS]]  # fmt: skip
    if others := totals[NUM_ROWS:]:
        name, calls = f"{len(others)} others", sum(other.calls for other in others)
        rest = Total(name, calls, sum(other.us for other in others))
        rows.append(_kernel(batch, name, "", rest, num_steps, busy))
    return rows


def _kernel(batch: int, name: str, kind: str, total: Total, num_steps: int, busy: float) -> dict[str, Value]:
    cells: dict[str, Value] = {"batch": batch, "kernel": name, "kind": kind, "calls": total.calls / num_steps}
    return cells | {"us": total.us / num_steps, "share": total.us / busy, "us a call": total.us / total.calls}


def step_cells(batch: int, events: Sequence[Event], num_steps: int, step_us: float) -> dict[str, Value]:
    """Busy and idle times of the steps behind those that fill the pipeline; no gaps if steps cannot be told apart."""
    cycles = periods(events, num_steps)[LEAD - 1 :]
    busy_ms = (median(cycle.busy_us for cycle in cycles) if cycles else busy_us(events) / num_steps) / 1e3
    longest = max(cycles, key=lambda period: period.gap_us, default=None)
    return {
        "batch": batch,
        "step": step_us / 1e3,
        "busy": busy_ms,
        "busy / step": busy_ms * 1e3 / step_us,
        "traced": median(cycle.span_us for cycle in cycles) / 1e3 if cycles else None,
        "idle": median(cycle.idle_us for cycle in cycles) / 1e3 if cycles else None,
        "kernels": len(events) / num_steps,
        "longest gap": longest.gap_us if longest else None,
        "before": f"`{short(longest.before)}`" if longest and longest.before else "-",
    }


# ---- the profiler ----


def _activities(device: torch.device) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]


def _categories(device: torch.device) -> tuple[str, ...]:
    return ON_THE_DEVICE if device.type == "cuda" else ON_THE_HOST


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _exported(profiled: Any) -> tuple[dict[str, Any], bytes]:
    """The trace, read and as it is in its file."""
    with tempfile.TemporaryDirectory(prefix="baton-gpu-") as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        text = path.read_bytes()
    trace: dict[str, Any] = json.loads(text)
    return trace, text


def _write(sheet: StepSheet, name: str, text: bytes) -> None:
    """Writes the trace, unless it is too large. A note or a fault says which."""
    packed = gzip.compress(text)
    if len(packed) > MAX_BYTES:
        sheet.fault(f"{name} is not kept: it has {len(packed) / 1e6:.1f} MB")
        return
    (sheet.folder.path / name).write_bytes(packed)
    sheet.note(f"{name}: {len(packed) / 1e6:.3g} MB, for chrome://tracing or ui.perfetto.dev")
