"""The step `tests`: what fails, crashes or is not reached is said by name, and the other tests run."""

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from bench.gpu import step_tests
from bench.gpu.sheet import Folder
from bench.gpu.step_tests import ONE_BY_ONE, PARTS, ROOT, SIDE_BY_SIDE, import_all
from bench.records import Note, Row

MARK = ".".join(("mark", "gpu"))
# What a GPU machine has for these tests: its own packages, and those that are brought along as wheels.
OWN: Final = {"torch", "triton", "transformers", "tokenizers", "safetensors", "numpy", "jinja2", "hypothesis", "pytest"}
WITH_TRANSFORMERS: Final = {"httpx"}
BROUGHT: Final = {"jiter", "llguidance", "msgpack", "psutil", "pydantic", "rich", "xxhash", "zmq"}
SCRIPT = """
import sys
from pathlib import Path
from bench.gpu.sheet import Folder, StepSheet
from bench.gpu.step_tests import APART, Part, run_part
from tests.doubles.clock import VirtualClock

folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
sheet = StepSheet(Folder(folder), "tests", VirtualClock(), seconds, judged=True)
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
    [row] = [record for record in records if isinstance(record, Row)]
    return row, [record.text for record in records if isinstance(record, Note) and record.fault]


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


def test_the_files_with_tests_for_a_gpu_are_listed_and_no_others() -> None:
    marked = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py") if MARK in path.read_text()}
    assert marked == {*SIDE_BY_SIDE, *ONE_BY_ONE}
    assert not {*SIDE_BY_SIDE} & {*ONE_BY_ONE}
    parts = PARTS["cuda"]
    assert {name: [part.paths for part in parts[name]] for name in parts} == {
        "tests": [SIDE_BY_SIDE],
        "handoff": [ONE_BY_ONE],
    }


def imported(path: Path) -> set[str]:
    """Modules that a file imports, wherever in it. Names that it takes from them may be modules, too."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return modules


def packages_of(start: Path) -> dict[str, Path]:
    """The packages of others that a file needs, itself or by our modules, each with a file that names it."""
    ours, seen, packages = {path.name for path in ROOT.iterdir() if path.is_dir()}, set[Path](), dict[str, Path]()
    waiting = [start, ROOT / "tests/conftest.py"]
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        for module in imported(path):
            top = module.partition(".")[0]
            if top in ours:
                waiting.append((ROOT / module.replace(".", "/")).with_suffix(".py"))
            elif top not in sys.stdlib_module_names:
                packages[top] = path
    return packages


@pytest.mark.parametrize("name", [*SIDE_BY_SIDE, *ONE_BY_ONE])
def test_a_file_for_a_gpu_imports_only_what_a_gpu_machine_has(name: str) -> None:
    needed = packages_of(ROOT / name)
    assert "pytest" in needed and "torch" in needed
    assert {package: path for package, path in needed.items() if package not in OWN | WITH_TRANSFORMERS | BROUGHT} == {}


def test_a_module_that_cannot_be_imported_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def imports(name: str) -> ModuleType:
        asked.append(name)
        if name == "worker.boot":
            raise ModuleNotFoundError("No module named 'opentelemetry'")
        return ast

    monkeypatch.setattr(step_tests, "import_module", imports)
    with pytest.raises(RuntimeError, match=r"^1 of \d+ modules cannot be imported: worker/boot: No module named 'open"):
        import_all(["worker"])
    assert "worker.loop" in asked
    asked.clear()
    assert import_all(["unified", "transfer"]) == f"{len(asked)} modules"
    assert "unified.worker" in asked and not [name for name in asked if "__main__" in name or ".ray" in name]
