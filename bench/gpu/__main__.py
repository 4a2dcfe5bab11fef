"""`python -m bench.gpu` (`make gpu`): all measurements of a GPU machine, step by step, in 25 minutes.

Each step has its own process and time limit. A step that fails or hangs is reported, and the others go on. The folder
OUT holds figures.jsonl and page.md, which grow with every figure, and log.txt with all output.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.gpu.plan import STEPS, TOTAL_S, Step, chosen, limit_s
from bench.gpu.process import run_limited
from bench.gpu.records import End, Machine, of_step, summary
from bench.gpu.sheet import Folder
from runtime.clock import MonotonicClock

LOG: Final = "log.txt"
LEAST_S: Final = 5.0  # a step is not begun with less time left
EXIT_CONFIG: Final = 2
VARIABLES: Final = {  # set for every step
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "NVIDIA_TF32_OVERRIDE": "0",  # true float32 products
    "PYTHONUNBUFFERED": "1",
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
    parser.add_argument("--minutes", type=float, default=TOTAL_S / 60, help="for all steps together (default 25)")
    asked = parser.parse_args(argv)

    console = Console(highlight=False, soft_wrap=True)
    try:
        steps = chosen(asked.step.replace(",", " ").split())
    except ValueError as error:
        console.print(f"make gpu: {error}", style=None, markup=False)
        return EXIT_CONFIG

    told = subprocess.run(
        (sys.executable, "-m", "bench.gpu.machine", asked.device), stdout=subprocess.PIPE, check=False
    )
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
        why = run_limited(child_command(step, folder, device, limit), limit, folder.path / LOG, variables())
        if not any(isinstance(each, End) and of_step(each, step.name) for each in folder.records()):
            folder.add(End(step.name, "failed", round(clock.now() - start_s, 1), why or "ended without a word"))


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
    not_ok = [each for each in records if isinstance(each, End) and each.outcome != "ok"]
    return 1 if any(of_step(each, step.name) for each in not_ok for step in steps) else 0


if __name__ == "__main__":
    sys.exit(main())
