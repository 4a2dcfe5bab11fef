"""A pytest plugin: for each test file the functions of the product that it enters, and the CPU seconds that it takes.

`python -m pytest -p tests.mutants.tracing` writes them to the file in TRACED_TESTS, as JSON. Functions that are entered
while modules are imported belong to no test file; those in child processes are not seen.
"""

import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

VARIABLE = "TRACED_TESTS"  # `baton` refuses unknown variables that begin with BATON_


@dataclass(frozen=True)
class Ran:
    """A test file: its CPU time, and the functions that it enters, as `path Class.method`."""

    cpu_s: float
    entered: frozenset[str]


def read(out: Path) -> dict[str, Ran]:
    """What the plugin has written, by test file."""
    return {test: Ran(each["cpu_s"], frozenset(each["entered"])) for test, each in json.loads(out.read_text()).items()}


class Tracer:
    """Keeps what has been entered since the last `take`, by the id of its code: to hash code takes long."""

    def __init__(self, root: Path) -> None:
        self._prefix = f"{root}/"
        self._entered: dict[int, CodeType] = {}

    def begin(self) -> None:
        """On this thread, and on each that starts from now on. Again for each file: a test may have ended it."""
        self._entered = {}
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def end(self) -> None:
        """On this thread, and on each that starts from now on."""
        threading.settrace(None)
        sys.settrace(None)

    def take(self) -> list[str]:
        """`path Class.method` for each function; a nested one counts as the one around it. Tracing ends."""
        self.end()
        inside = [code for code in [*self._entered.values()] if code.co_filename.startswith(self._prefix)]
        named = {
            f"{code.co_filename.removeprefix(self._prefix)} {code.co_qualname.partition('.<locals>')[0]}"
            for code in inside
        }
        return sorted(name for name in named if not name.startswith("tests/"))

    def _trace(self, frame: FrameType, _event: str, _argument: Any) -> None:
        if id(frame.f_code) not in self._entered:
            self._entered[id(frame.f_code)] = frame.f_code


class Plugin:
    """Notes each test file when the next one begins."""

    def __init__(self, root: Path, out: Path) -> None:
        self._tracer = Tracer(root)
        self._out = out
        self._file = ""
        self._began_s = 0.0
        self._files: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        file = nodeid.partition("::")[0]
        if file != self._file:
            self._end_file()
            self._file, self._began_s = file, time.process_time()
            self._tracer.begin()

    def pytest_sessionfinish(self) -> None:
        """All tests are over."""
        self._end_file()
        self._out.write_text(json.dumps(self._files))

    def _end_file(self) -> None:
        if self._file:
            taken = {"cpu_s": time.process_time() - self._began_s, "entered": self._tracer.take()}
            self._files[self._file] = taken


def pytest_configure(config: pytest.Config) -> None:
    """Where the tests run is the root of the product."""
    config.pluginmanager.register(Plugin(Path.cwd(), Path(os.environ[VARIABLE])))
