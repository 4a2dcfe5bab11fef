"""`python -m bench.gpu.child STEP --device D --out DIR --seconds N`: runs one step in this process.

The parent process ends it if it takes too long. STEP `machine` prints the machine and its software as one JSON object;
without that device, it ends with status 2 and a sentence.
"""

import argparse
import faulthandler
import json
import os
import platform
import subprocess
import sys
import traceback
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import torch

from bench.gpu.plan import STEPS, WINDING_UP_S
from bench.gpu.sheet import Folder, StepSheet
from bench.records import Value
from runtime.clock import MonotonicClock

MACHINE: Final = "machine"
EXIT_CONFIG: Final = 2
STACKS_S: Final = 3.0  # before a step is ended, it writes what its threads are doing to the log


def main() -> int:
    """Status 0 when the step has reached its end, even if parts of it failed. The sheet names them."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.child")
    parser.add_argument("step", choices=[MACHINE, *(step.name for step in STEPS)])
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=0.0)
    asked = parser.parse_args()
    if asked.step == MACHINE:
        return tell_machine(asked.device)

    clock = MonotonicClock()
    deadline_s = clock.now() + asked.seconds - min(WINDING_UP_S, asked.seconds / 4)
    sheet = StepSheet(Folder(asked.out), asked.step, clock, deadline_s, judged=asked.device == "cuda")
    module = next(step.module for step in STEPS if step.name == asked.step)

    if asked.device == "cpu":
        torch.set_num_threads(1)
    faulthandler.dump_traceback_later(max(asked.seconds - STACKS_S, asked.seconds / 2))
    try:
        getattr(import_module(f"bench.gpu.{module}"), f"measure_{asked.step}")(sheet, asked.device)
    except Exception as error:  # noqa: BLE001 - the top of the step: the sheet says that it failed, and why
        traceback.print_exc(file=sys.stderr)
        sheet.fault(f"{type(error).__name__}: {error}".splitlines()[0][:300])

    faulthandler.cancel_dump_traceback_later()
    sheet.end()
    return 0


def tell_machine(device: str) -> int:
    """Prints what `facts` says."""
    if device == "cuda" and not torch.cuda.is_available():
        print("make gpu: torch finds no CUDA device here; DEVICE=cpu runs the same steps with tiny shapes")
        return EXIT_CONFIG
    print(json.dumps(facts(device)))
    return 0


def facts(device: str) -> dict[str, Value]:
    """Names and values for the first lines of the page."""
    facts: dict[str, Value] = {"device": device_words(device), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    facts |= {"commit": _commit(), "Python": platform.python_version(), "torch": torch.__version__}
    facts |= {name: _version(name) for name in ("triton", "transformers")}
    if device == "cuda":
        about = torch.cuda.get_device_properties(0)
        facts |= {"multiprocessors": about.multi_processor_count, "device GB": round(about.total_memory / 1e9, 1)}
        facts |= {"CUDA": torch.version.cuda, "GPUs": torch.cuda.device_count()}
    return facts | {"cores": len(os.sched_getaffinity(0))}


def device_words(device: str) -> str:
    """The device's name. For a CPU, a sentence that nothing is measured."""
    return torch.cuda.get_device_name(0) if device == "cuda" else "a CPU with tiny shapes, which measures nothing"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _commit() -> str:
    asked = ("git", "rev-parse", "--short", "HEAD")
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
