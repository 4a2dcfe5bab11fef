"""`make gpu DEVICE=cpu`: each step runs to its end with tiny shapes, and leaves figures and a page."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import torch
from rich.console import Console

from bench.gpu.__main__ import main, report, run_limited, run_steps
from bench.gpu.plan import STEPS, Step
from bench.gpu.sheet import FIGURES, PAGE, Folder
from bench.records import End
from tests.selecting import full

PROJECT = Path(__file__).resolve().parents[3]
FEW = ("experts", "ipc", "serve")  # the steps that `make test-slow` runs
PATIENCE_S = 900  # each step may take so long: on a busy machine, some minutes
FIELDS: Final[Mapping[str, set[str]]] = {
    "machine": {"facts"},
    "row": {"step", "table", "cells", "about"},
    "goal": {"step", "words", "value", "sense", "bound", "judged"},
    "note": {"step", "text", "fault"},
    "end": {"step", "outcome", "seconds", "why"},
}
TABLES: Final = {  # a column of each table that a step has
    "smoke": {"Smoke": "found"},
    "tests": {"Tests that need a device": "collected"},
    "handoff": {"Tests that need a device": "collected"},
    "parity": {"Tokens": "overlap, graphs", "bfloat16 logits": "our error"},
    "decode": {
        "Products of a decode step": "floor / ms",
        "A decode step": "overlap / forward",
        "Limits of a decode step": "roofline / forward",
        "Forwards by a server's graphs": "ratio",
    },
    "prefill": {"A prompt": "share of peak"},
    "ipc": {
        "KV from process to process": "share",
        "The host's time and the device's": "device ms",
        "Pinned host memory": "seconds",
    },
    "serve": {"Clients over HTTP": "TTFT p50", "Long prompts beside streams": "long prompts' TTFT p50"},
    "passes": {
        "Results": "error",
        "A pass": "torch / fused",
        "Attention of decodes": "longest / tight",
        "Attention of a prompt": "ours / torch",
    },
    "experts": {"Experts": "torch / grouped"},
    "sampler": {"A draw": "device / one read"},
    "trace": {"Where a step's time goes": "idle", "Kinds of kernels": "floor / us", "Kernels by time": "share"},
    "drafts": {
        "A launch with a draft": "bubble",
        "The bundled model": "length",
        "What a launch with a draft is made of": "verify 5",
    },
}


def by_hand(*options: str) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-m", "bench.gpu", *options)
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FIGURES).read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("name", [name if name in FEW else full(name) for name in (step.name for step in STEPS)])
def test_each_step_runs_on_a_cpu(tmp_path: Path, name: str) -> None:
    minutes = str(PATIENCE_S / 60)
    done = by_hand("--device", "cpu", "--step", name, "--out", str(tmp_path), "--minutes", minutes)
    log = (tmp_path / "log.txt").read_text()[-3000:]
    assert done.returncode == 0, done.stdout + done.stderr + log
    assert done.stdout.splitlines()[-1].startswith(f"{name:8} ok, ")
    lines = lines_of(tmp_path)
    for line in lines:
        assert line.keys() == FIELDS[line["kind"]] | {"kind"} and line.get("step", name) == name
    assert [line["kind"] for line in lines].count("end") == 1 and lines[0]["kind"] == "machine"
    assert not [line for line in lines if line.get("fault") or str(line.get("text", "")).startswith("left out")], lines
    columns = {line["table"]: set(line["cells"]) for line in lines if line["kind"] == "row"}
    assert columns.keys() == TABLES[name].keys()
    assert all(column in columns[table] for table, column in TABLES[name].items())
    page = (tmp_path / PAGE).read_text()
    assert f"| {name} | ok" in page and all(f"**{table}.**" in page for table in TABLES[name])
    traces = sorted(path.name for path in tmp_path.glob("*.json.gz"))
    assert traces == [f"decode-trace-{batch}.json.gz" for batch in ((1, 2, 3) if name == "trace" else ())]
    counted = [line["cells"] for line in lines if line.get("table") == "Tests that need a device"]
    assert all((cells["passed"] is None) == ("not run" in cells["tests"]) for cells in counted)
    assert "steps, graphs" not in page and "| yes |" not in page and "Qwen3-8B" not in page  # there are none on a CPU


@pytest.mark.slow
def test_a_step_that_ends_without_a_word_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    absent = Step("trace", "step_that_is_absent", 1, "nothing")
    folder = Folder(tmp_path)
    run_steps([absent, Step("decode", "x", 1, "x")], folder, "no such device", 1000.0, Console(quiet=True))
    ends = [record for record in folder.records() if isinstance(record, End)]
    assert [(end.step, end.outcome, end.why) for end in ends] == [
        ("trace", "failed", "ended with status 2"),
        ("decode", "failed", "ended with status 2"),
    ]


def test_a_step_without_time_is_not_begun(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    run_steps([Step("decode", "x", 1, "x")], folder, "cpu", 1.0, Console(quiet=True))
    assert folder.records() == [End("decode", "not run", 0.0, "no time was left")]
    assert not (tmp_path / "log.txt").exists()


def test_a_step_that_was_not_run_makes_the_exit_status_1(tmp_path: Path) -> None:
    folder, step = Folder(tmp_path), Step("decode", "x", 1, "x")
    folder.add(End("decode", "ok", 1.0))
    assert report([step], folder, Console(quiet=True)) == 0
    folder.add(End("decode", "not run", 0.0, "no time was left"))
    assert report([step], folder, Console(quiet=True)) == 1


def test_a_step_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--step", "decoding", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().out.startswith(
        "make gpu: STEP: got 'decoding', expected some of smoke, tests, handoff, trace"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_the_command_says_what_to_do(tmp_path: Path) -> None:
    done = by_hand("--out", str(tmp_path / "out"))
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert done.stdout.strip() == (
        "make gpu: torch finds no CUDA device here; DEVICE=cpu runs the same steps with tiny shapes"
    )


# ---- one step's process ----

HANGS = """
import subprocess, sys, threading
waits = [sys.executable, "-c", "import threading; threading.Event().wait()"]
children = [subprocess.Popen(waits, start_new_session=own) for own in (False, True)]
print(*(child.pid for child in children), flush=True)
threading.Event().wait()
"""


def run_script(script: str, tmp_path: Path, limit_s: float = 100.0) -> tuple[str, str]:
    reason = run_limited((sys.executable, "-c", script), limit_s, tmp_path / "log", {"STEP_SAYS": "hello"})
    return reason, (tmp_path / "log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, reason",
    [
        ("pass", ""),
        ("raise SystemExit(3)", "ended with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    ],
)
def test_how_it_ended_is_said(tmp_path: Path, script: str, reason: str) -> None:
    assert run_script(script, tmp_path)[0] == reason


@pytest.mark.slow
def test_a_step_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    limit_s, said = 1.0, ""
    while not said:  # a busy machine may take longer than that to start it
        limit_s *= 3
        reason, said = run_script(HANGS, tmp_path, limit_s)
        assert reason == f"not over after {limit_s:.0f} s: killed"
    assert not any(psutil.pid_exists(int(pid)) for pid in said.split())
