"""`pytest -m gpu`: each failure is written down at once.

    side by side    most tests, in several processes, because compilers take most of their time
    one by one      those of tests/handoff, which need the device for themselves

Tests run in their own processes, so that one that crashes or hangs fails alone. On a CPU the tests are only collected,
and some others run in their place.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import pytest

from bench.gpu.sheet import Sheet

ROOT: Final = Path(__file__).resolve().parents[2]
TEST_S: Final = 100  # the greatest time of one test
OPTIONS: Final = ("-p", "no:cacheprovider", "-v", "--no-header", "--rootdir", str(ROOT))
APART: Final = ("--dist", "worksteal", "--timeout", str(TEST_S), "--timeout-method", "thread")
FAILED: Final = 1  # pytest's status when tests failed; a higher one means another fault


@dataclass(frozen=True)
class Part:
    """Tests that run together, as pytest's arguments."""

    name: str
    paths: tuple[str, ...]
    options: tuple[str, ...]


PARTS: Final = {
    "cuda": (
        Part("side by side", ("tests",), ("-m", "gpu", "-n", "8", *APART, "--ignore", str(ROOT / "tests/handoff"))),
        Part("one by one", ("tests/handoff",), ("-m", "gpu", "-n", "1", *APART)),
    ),
    "cpu": (
        Part("for a GPU: collected here, not run", ("tests",), ("-m", "gpu", "-p", "no:xdist", "--collect-only", "-q")),
        Part("side by side, in their place", ("tests/bench/gpu/test_plan.py",), ("-n", "2", *APART)),
        Part("one by one, in their place", ("tests/bench/gpu/test_records.py",), ("-n", "1", *APART)),
    ),
}


class Watch:
    """A pytest plugin: counts outcomes, writes failures, and ends the tests when the step's time is over."""

    def __init__(self, sheet: Sheet) -> None:
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


def measure(sheet: Sheet, device: str) -> None:
    """Runs the step."""
    for part in PARTS[device]:
        run_part(sheet, part)


def run_part(sheet: Sheet, part: Part) -> None:
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
