"""`python -m bench.gpu` (`make gpu`): all measurements of a GPU machine, step by step, in 15 minutes.

Each step has its own process and time limit. A step that fails or hangs is reported, and the others go on. The folder
OUT holds figures.jsonl and page.md, which grow with every figure, and log.txt with all output.

For a machine that is lent for 15 minutes in all, lease.py plans calls of at most six minutes.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console

from bench.gpu.plan import STEPS, TOTAL_S, Step, chosen, limit_s
from bench.gpu.sheet import Folder
from bench.records import End, Machine, of_step, summary
from bench.vllm import session_members
from loadtest.tied import tied
from runtime.clock import MonotonicClock

LOG: Final = "log.txt"
LEAST_S: Final = 5.0  # a step is not begun with less time left
GONE_S: Final = 10.0  # for the processes of a step to end, once they are killed
EXIT_CONFIG: Final = 2
VARIABLES: Final = {  # set for every step
    "DISABLE_CUPTI_LAZY_REINIT": "1",  # with TEARDOWN_CUPTI: a process may trace graphs more than once
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "NVIDIA_TF32_OVERRIDE": "0",  # true float32 products
    "PYTHONUNBUFFERED": "1",
    "TEARDOWN_CUPTI": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Status 1: a step failed or was not run. 2: no such device or step. A missed goal is a figure, not a failure."""
    names = ", ".join(step.name for step in STEPS)
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--step", default="", help=f"some of: {names} (default: all)")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny shapes, to see that it runs"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-figures"), help="folder for figures, page and log")
    parser.add_argument("--minutes", type=float, default=TOTAL_S / 60, help="for all steps together (default 15)")
    asked = parser.parse_args(argv)

    console = Console(highlight=False, soft_wrap=True)
    try:
        steps = chosen(asked.step.replace(",", " ").split())
    except ValueError as error:
        console.print(f"make gpu: {error}", style=None, markup=False)
        return EXIT_CONFIG

    command = (sys.executable, "-m", "bench.gpu.child", "machine", "--device", asked.device)
    told = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if told.returncode != 0:
        console.print(told.stdout.decode(errors="replace").strip() or "make gpu: torch does not start", markup=False)
        return EXIT_CONFIG

    folder = Folder(asked.out)
    folder.begin(Machine(json.loads(told.stdout)), [step.name for step in steps])
    run_steps(steps, folder, asked.device, asked.minutes * 60, console)
    return report(steps, folder, console)


def run_steps(steps: Sequence[Step], folder: Folder, device: str, total_s: float, console: Console) -> None:
    """Runs the steps in turn. A step that has not written its end was killed or has crashed."""
    clock = MonotonicClock()
    end_s = clock.now() + total_s
    for index, step in enumerate(steps):
        limit = limit_s(steps[index:], end_s - clock.now())
        if limit < LEAST_S:
            folder.add(End(step.name, "not run", 0.0, "no time was left"))
            continue
        console.print(f"{step.name}: {step.words} (up to {limit:.0f} s)", markup=False)
        start_s = clock.now()
        reason = run_limited(child_command(step, folder, device, limit), limit, folder.path / LOG, variables())
        if not any(isinstance(record, End) and of_step(record, step.name) for record in folder.records()):
            folder.add(End(step.name, "failed", round(clock.now() - start_s, 1), reason or "ended without a word"))


def child_command(step: Step, folder: Folder, device: str, limit: float) -> tuple[str, ...]:
    """The command line of one step's process."""
    options = ("--device", device, "--out", str(folder.path), "--seconds", f"{limit:.0f}")
    return (sys.executable, "-m", "bench.gpu.child", step.name, *options)


def variables() -> dict[str, str]:
    """The variables added to a step's environment. The project's folder is found from any working directory."""
    paths = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**VARIABLES, "PYTHONPATH": os.pathsep.join(paths)}


def report(steps: Sequence[Step], folder: Folder, console: Console) -> int:
    """Prints a line for each step. Returns the exit status."""
    records = folder.records()
    console.print(f"\n{folder.path / 'page.md'} and {folder.path / 'figures.jsonl'}:", markup=False)
    for step in steps:
        console.print(f"{step.name:8} {summary(step.name, records)}", markup=False)
    not_ok = [record for record in records if isinstance(record, End) and record.outcome != "ok"]
    return 1 if any(of_step(record, step.name) for record in not_ok for step in steps) else 0


# ---- one step's process ----


def run_limited(command: Sequence[str], limit_s: float, log: Path, variables: Mapping[str, str]) -> str:
    """Runs `command` and appends its output to `log`. Returns why it failed, or ""."""
    with log.open("ab") as said:
        child = subprocess.Popen(
            tied(command), stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **variables},
        )  # fmt: skip
        try:
            status = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"not over after {limit_s:.0f} s: killed"
        finally:
            end_tree(child)

    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"ended with status {status}" if status else ""


def end_tree(child: "subprocess.Popen[bytes]") -> None:
    """Kills the process, its descendants and the rest of its session. Returns when they are gone."""
    doomed = session_members(child.pid)
    with contextlib.suppress(psutil.NoSuchProcess):
        doomed += psutil.Process(child.pid).children(recursive=True)
    for process in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if child.returncode is None:
        child.kill()
        child.wait()
    psutil.wait_procs(doomed, timeout=GONE_S)


if __name__ == "__main__":
    sys.exit(main())
