"""The step `tests`: what fails, crashes or is not reached is said by name, and the other tests run."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu.records import Note, Row
from bench.gpu.sheet import Folder
from bench.gpu.step_tests import last_line

SCRIPT = """
import sys
from pathlib import Path
from bench.gpu.sheet import Folder, Sheet
from bench.gpu.step_tests import APART, Part, run_part
from tests.doubles.clock import VirtualClock

folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
sheet = Sheet(Folder(folder), "tests", VirtualClock(), seconds, judged=True)
run_part(sheet, Part("these", (str(folder / "test_it.py"),), ("-n", "1", *APART)))
"""
TESTS = """
import os

def test_one():
    pass

def test_two():
    assert 1 + 1 == 3, "wrong sum"

def test_three():
    os.abort()

def test_four():
    pass
"""


def found_in(folder: Path, seconds: float) -> tuple[Row, list[str]]:
    (folder / "test_it.py").write_text(TESTS)
    command = (sys.executable, "-c", SCRIPT, str(folder), str(seconds))
    subprocess.run(command, check=True, capture_output=True)
    records = Folder(folder).records()
    [row] = [each for each in records if isinstance(each, Row)]
    return row, [each.text for each in records if isinstance(each, Note) and each.fault]


@pytest.mark.slow
def test_one_that_fails_or_crashes_does_so_alone(tmp_path: Path) -> None:
    row, faults = found_in(tmp_path, 1000.0)
    assert {name: row.cells[name] for name in ("collected", "passed", "failed")} == {
        "collected": 4, "passed": 2, "failed": 2,
    }  # fmt: skip
    assert len(faults) == 2
    assert "test_two`: AssertionError: wrong sum" in faults[0] and "test_three`: " in faults[1]


@pytest.mark.slow
def test_when_the_time_is_over_the_tests_end_and_their_number_is_said(tmp_path: Path) -> None:
    row, faults = found_in(tmp_path, -1.0)
    assert (row.cells["collected"], row.cells["passed"]) == (4, 0)
    assert faults == ["these: 0 of 4 tests were run"]


def test_the_line_that_names_a_fault_is_kept() -> None:
    assert (
        last_line("def test():\n>   f()\nE   RuntimeError: no kernel\nE   and more\n\nfile:3")
        == "RuntimeError: no kernel"
    )
    assert last_line("worker crashed\n") == "worker crashed"
