"""Whether anything works here at all, in a minute; then `pytest -m gpu`: each failure is written down at once.

    smoke      every module can be imported, a worker answers over HTTP, one graph, one copy between processes
    tests      most tests, side by side in several processes, because compilers take most of their time
    handoff    one by one those that need the device for themselves: processes that reach each other's memory

Tests run in their own processes, so that one that crashes or hangs fails alone. On a CPU the tests are only collected,
and some others run in their place.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import pytest
import torch

from bench.gpu.shape import TINY, captured, maker_of_graphs, random_runner
from bench.gpu.sheet import StepSheet
from bench.gpu.step_limits import TINY_KV
from bench.transfer.cuda_ipc import measure as moved
from loadtest.deployment import UNIFIED
from loadtest.load import plain_load, run_deployed
from model.graphs import GraphedRunner
from model.paged_kv import PagedKv
from runtime.installation import ROOMS

ROOT: Final = Path(__file__).resolve().parents[2]
TEST_S: Final = 100  # the greatest time of one test
# A GPU machine brings its own packages: a plugin or a warning that a developer's machine lacks must not end the step.
OPTIONS: Final = (
    *("-p", "no:cacheprovider", "-p", "no:benchmark", "-o", "filterwarnings=default"),
    *("-v", "--no-header", "--rootdir", str(ROOT)),
)
# The files with tests for a GPU. Others are not even collected: some import what a GPU machine lacks.
SIDE_BY_SIDE: Final = (
    "tests/bench/gpu/test_segments.py",
    "tests/bench/transfer/test_cuda_ipc.py",
    "tests/handoff/test_drafts_on_a_device.py",
    "tests/model/test_attention_triton.py",
    "tests/model/test_attention_varlen.py",
    "tests/model/test_collectives_torch.py",
    "tests/model/test_cuda_capture.py",
    "tests/model/test_experts_triton.py",
    "tests/model/test_graphs.py",
    "tests/model/test_idle_forward.py",
    "tests/model/test_page_copies_triton.py",
    "tests/model/test_passes_triton.py",
    "tests/model/test_pinned_memory.py",
    "tests/model/test_runner.py",
    "tests/model/test_sampler_triton.py",
    "tests/scheduler/execution/test_future_map_on_a_device.py",
    "tests/scheduler/execution/test_page_table.py",
    "tests/scheduler/execution/test_streams_cuda.py",
    "tests/scheduler/speculation/test_draft_launches_by_shape.py",
    "tests/transfer/in_place/test_device_moves_triton.py",
)
ONE_BY_ONE: Final = ("tests/handoff/test_cuda.py",)
APART: Final = ("--dist", "worksteal", "--timeout", str(TEST_S), "--timeout-method", "thread")
FAILED: Final = 1  # pytest's status when tests failed; a higher one means another fault


@dataclass(frozen=True)
class Part:
    """Tests that run together, as pytest's arguments."""

    name: str
    paths: tuple[str, ...]
    options: tuple[str, ...]


PARTS: Final[Mapping[str, Mapping[str, tuple[Part, ...]]]] = {  # by device and step
    "cuda": {
        "tests": (Part("side by side", SIDE_BY_SIDE, ("-m", "gpu", "-n", "14", *APART)),),
        "handoff": (Part("one by one", ONE_BY_ONE, ("-m", "gpu", "-n", "1", *APART)),),
    },
    "cpu": {
        "tests": (
            Part(
                "for a GPU: collected here, not run",
                (*SIDE_BY_SIDE, *ONE_BY_ONE),
                ("-m", "gpu", "-p", "no:xdist", "--collect-only", "-q"),
            ),
            Part("side by side, in their place", ("tests/bench/gpu/test_plan.py",), ("-n", "2", *APART)),
        ),
        "handoff": (Part("one by one, in their place", ("tests/bench/test_records.py",), ("-n", "1", *APART)),),
    },
}


class Watch:
    """A pytest plugin: counts outcomes, writes failures, and ends the tests when the step's time is over."""

    def __init__(self, sheet: StepSheet) -> None:
        self.counts: Counter[str] = Counter()
        self.collected = 0
        self._sheet = sheet

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Counts the tests that this process has collected."""
        self.collected = max(self.collected, len(getattr(session, "items", ())))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Counts the tests that another process has collected."""
        self.collected = len(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file could not be collected."""
        if report.failed:
            self._failed(report.nodeid, report.longreprtext)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The set-up, call or teardown of a test has ended."""
        if report.failed:
            self._failed(report.nodeid, report.longreprtext)
        elif report.when == "call" or report.skipped:
            self.counts[report.outcome] += 1
        if self._sheet.left_s < 0:
            pytest.exit("the step's time is over", returncode=FAILED)

    def _failed(self, name: str, text: str) -> None:
        self.counts["failed"] += 1
        self._sheet.fault(f"`{name}`: {last_line(text)}")


def last_line(text: str) -> str:
    """Returns the exception line of a traceback, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no word"]
    raised = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    return (raised or lines[-1:])[0][:300]


def measure_tests(sheet: StepSheet, device: str, step: str = "tests") -> None:
    """Runs the step `tests`."""
    for part in PARTS[device][step]:
        run_part(sheet, part)


def measure_handoff(sheet: StepSheet, device: str) -> None:
    """Runs the step `handoff`."""
    measure_tests(sheet, device, "handoff")


def run_part(sheet: StepSheet, part: Part) -> None:
    """A row for these tests, and a fault for each that failed."""
    watch, start = Watch(sheet), perf_counter()
    status = pytest.main([*OPTIONS, *part.options, *(str(ROOT / path) for path in part.paths)], plugins=[watch])
    counts, runs = watch.counts, "--collect-only" not in part.options
    cells: dict[str, Any] = {"tests": part.name, "collected": watch.collected}
    cells |= {name: counts[name] if runs else None for name in ("passed", "failed", "skipped")}
    sheet.row("Tests that need a device", {**cells, "seconds": perf_counter() - start})
    if not watch.collected or status > FAILED:
        sheet.fault(f"{part.name}: pytest ended with status {int(status)}; the log says why")
    elif runs and counts.total() < watch.collected:
        sheet.fault(f"{part.name}: {counts.total()} of {watch.collected} tests were run")


# ---- smoke ----

OPTIONAL: Final = ("ray", "nixl")  # transfer backends with packages of their own
SMOKE_S: Final = 5.0  # of a part; none is begun with less time left
ONE_ANSWER: Final = plain_load(1, 1, prompt_tokens=8, output_tokens=8, vocab=200, seed=1)


def measure_smoke(sheet: StepSheet, device: str) -> None:
    """Runs the step `smoke`. A part that fails is a fault, and the others go on."""
    parts: dict[str, Callable[[], str]] = {
        "imports": import_all,
        "an answer over HTTP": partial(_one_answer, device),
        "a graph": partial(_one_graph, device),
        "a copy between processes": partial(_one_copy, device),
    }
    for what, run in parts.items():
        sheet.part(what, SMOKE_S, partial(_smoke, sheet, what, run))


def _smoke(sheet: StepSheet, what: str, run: Callable[[], str]) -> None:
    start = perf_counter()
    outcome = run()
    sheet.row("Smoke", {"part": what, "found": outcome, "seconds": perf_counter() - start})


def import_all(rooms: Sequence[str] = ROOMS) -> str:
    """Imports every module of Baton. RuntimeError names those that cannot be imported, and why."""
    paths = [path.relative_to(ROOT).with_suffix("") for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    paths = [path for path in paths if path.name != "__main__" and not {*path.parts} & {*OPTIONAL}]
    failed = []
    for path in paths:
        try:
            import_module(".".join(path.parts))
        except ImportError as error:
            failed.append(f"{path}: {error}")
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(paths)} modules cannot be imported: {'; '.join(failed)}")
    return f"{len(paths)} modules"


def _one_answer(device: str) -> str:
    flags = ("--model", str(ROOT / "models/story"), "--device", device, "--max-total-tokens", "4096", *UNIFIED)
    return f"{asyncio.run(run_deployed(flags, ONE_ANSWER)).progress.num_tokens} tokens"


@torch.inference_mode()
def _one_graph(device: str) -> str:
    where = torch.device(device)
    runner = GraphedRunner(random_runner(TINY, device, 16), maker_of_graphs(where))
    runner.capture(PagedKv(runner.kv_layout(16), 5, where), 2, 4)
    captured(runner)
    return "replayed like the forward"


def _one_copy(device: str) -> str:
    figures = moved(1, 512, TINY_KV, device)
    if figures is None:
        raise RuntimeError("there is no CUDA device")
    return f"{figures['bytes']:,} bytes, sums agree"
