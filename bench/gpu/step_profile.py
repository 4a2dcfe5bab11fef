"""A trace of decode steps at batch 32, for Chrome and Perfetto, and the kernels that take most of the time."""

import gzip
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from bench.gpu.decoders import decoders
from bench.gpu.shape import device_runner, words_of, words_of_graphs
from bench.gpu.sheet import Sheet
from bench.overlap.decoding import PAGE_SIZE, Decoding, Plan

TRACE: Final = "decode-trace.json.gz"
MAX_BYTES: Final = 16 << 20  # the largest file that a GPU machine returns
NUM_ROWS: Final = 12
STEPS: Final = 4
ABOUT: Final = "Sums over all steps of the trace."


def measure(sheet: Sheet, device: str) -> None:
    """Runs the step, with graphs and overlap, as a worker decodes."""
    is_gpu = device == "cuda"
    batch, context = (32, 1024) if is_gpu else (2, 17)
    plan = Plan(context, STEPS, rounds=2)
    runner = device_runner(device, PAGE_SIZE)
    how = f"{words_of_graphs(device)} and overlap"
    sheet.note(f"batch {batch}, context {context:,}, {STEPS} steps, {how}; {words_of(runner.config, device)}")

    with decoders(runner, batch, plan, graphs=(True,)) as ways:
        [way] = [each for each in ways if each.overlap]
        found = traced(way.decoding, is_gpu)

    size = compress(found, sheet.folder.path / TRACE)
    if size > MAX_BYTES:
        sheet.fault(f"{TRACE} has {size / 1e6:.1f} MB, more than comes back from a GPU machine")
    sheet.note(f"{TRACE}: {size / 1e6:.3g} MB, for chrome://tracing or ui.perfetto.dev")

    for cells in top_rows(found.key_averages(), is_gpu):
        sheet.row("What takes the time" if is_gpu else "What takes the host's time", cells, ABOUT)


def traced(decoding: Decoding, is_gpu: bool) -> Any:
    """The profile of some steps."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with profile(activities=activities) as found:
        decoding.run(STEPS)
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
