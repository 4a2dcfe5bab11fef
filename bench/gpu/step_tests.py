"""`pytest -m gpu`, in this process, so that each failure is a figure as soon as it is there.

On a CPU the tests are only collected. What it does not know: what they test.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from bench.gpu.sheet import Sheet

OPTIONS: Final = ("-m", "gpu", "-p", "no:cacheprovider", "-p", "no:xdist", "-v", "--no-header")
INTERRUPTED: Final = 2  # pytest's status for errors while collecting


class Watch:
    """A pytest plugin: counts outcomes, writes down failures."""

    def __init__(self, sheet: Sheet) -> None:
        self.counts: Counter[str] = Counter()
        self.collected = 0
        self._sheet = sheet

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """How many there are."""
        self.collected = len(session.items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot even be read as tests."""
        if report.failed:
            self._failed(report.nodeid, report.longreprtext)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One test's set-up, call or end."""
        if report.failed:
            self._failed(report.nodeid, report.longreprtext)
        elif report.when == "call" or report.skipped:
            self.counts[report.outcome] += 1

    def _failed(self, name: str, text: str) -> None:
        self.counts["failed"] += 1
        self._sheet.fault(f"`{name}`: {last_line(text)}")


def last_line(text: str) -> str:
    """Of a traceback: what was raised, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no word"]
    raised = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    return (raised or lines[-1:])[0][:300]


def measure(sheet: Sheet, device: str) -> None:
    """The step."""
    root = Path(__file__).resolve().parents[2]
    watch = Watch(sheet)
    more = [] if device == "cuda" else ["--collect-only", "-q"]
    sys.path.insert(0, str(root))
    status = pytest.main([*OPTIONS, *more, "--rootdir", str(root), str(root / "tests")], plugins=[watch])
    counts = watch.counts
    cells = {"collected": watch.collected, **{name: counts[name] for name in ("passed", "failed", "skipped")}}
    sheet.row("Tests that need a device", cells, "" if device == "cuda" else "There is none: nothing was run.")
    if not watch.collected:
        sheet.fault(f"pytest found no test, and ended with status {int(status)}")
    if status >= INTERRUPTED and watch.collected:
        sheet.fault(f"pytest ended with status {int(status)}")
