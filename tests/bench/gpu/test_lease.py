"""The plan for a lent machine: calls of at most six minutes."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu.lease import main
from bench.gpu.plan import chosen

PROJECT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("step", ["", "decode ipc"])
def test_a_command_for_each_call(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--step", step]) == 0
    *lines, total = capsys.readouterr().out.splitlines()
    if step:
        assert lines == ["make gpu STEP='decode ipc' MINUTES=5.5  # 125 s: start 30, decode 55, ipc 40"]
        assert total == "# 1 call, 125 s together, 2.1 minutes, without the starts of the machine"
    names = [name for line in lines for name in line.split("'")[1].split()]
    assert sorted(names) == sorted(step.split() or [planned.name for planned in chosen([])])
    seconds = [float(line.split("# ")[1].split()[0]) for line in lines]
    assert max(seconds) <= 360 and f"{sum(seconds):g} s together" in total


def test_a_step_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--step", "decoding"]) == 2
    assert capsys.readouterr().out.startswith("make gpu: STEP: got 'decoding', expected some of smoke, tests")


def test_make_prints_it_without_a_virtual_environment(tmp_path: Path) -> None:
    """The packages of this one are hidden from the Python that make calls."""
    bare = f"PYTHON={sys.executable} -S -E"
    venv = tmp_path / "venv"
    command = ["make", "--no-print-directory", "gpu", "PLAN=lease", "STEP=ipc", bare, f"VENV={venv}"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("make gpu STEP='ipc' MINUTES=5.5  # ") and not venv.exists()

    command[3] = "PLAN=loan"
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "PLAN: got loan, expected lease" in done.stderr and not venv.exists()
