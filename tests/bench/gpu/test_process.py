"""A step's process: what it says is kept, and when its time is over, it and its children are gone."""

import sys
from pathlib import Path

import psutil
import pytest

from bench.gpu.process import run_limited

pytestmark = pytest.mark.slow
HANGS = """
import subprocess, sys, threading
waits = [sys.executable, "-c", "import threading; threading.Event().wait()"]
children = [subprocess.Popen(waits, start_new_session=own) for own in (False, True)]
print(*(child.pid for child in children), flush=True)
threading.Event().wait()
"""


def run(script: str, tmp_path: Path, limit_s: float = 100.0) -> tuple[str, str]:
    why = run_limited((sys.executable, "-c", script), limit_s, tmp_path / "log", {"STEP_SAYS": "hello"})
    return why, (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    "script, why",
    [
        ("pass", ""),
        ("raise SystemExit(3)", "ended with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    ],
)
def test_how_it_ended_is_said(tmp_path: Path, script: str, why: str) -> None:
    assert run(script, tmp_path)[0] == why


def test_what_it_says_is_kept(tmp_path: Path) -> None:
    assert run("import os; print(os.environ['STEP_SAYS'])", tmp_path)[1] == "hello\n"


def test_a_step_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    limit_s, said = 1.0, ""
    while not said:  # a busy machine may take longer than that to start it
        limit_s *= 3
        why, said = run(HANGS, tmp_path, limit_s)
        assert why == f"not over after {limit_s:.0f} s: killed"
    assert not any(psutil.pid_exists(int(pid)) for pid in said.split())
