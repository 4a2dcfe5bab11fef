"""`python -m bench.gpu.child STEP --device D --out DIR --seconds N`: runs one step in this process.

The parent process ends it if it takes too long.
"""

import argparse
import sys
import traceback
from importlib import import_module
from pathlib import Path

from bench.gpu.plan import STEPS, WINDING_UP_S
from bench.gpu.sheet import Folder, Sheet
from runtime.clock import MonotonicClock


def main() -> int:
    """Status 0 when the step has reached its end, even if parts of it failed. The sheet names them."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.child")
    parser.add_argument("step", choices=[step.name for step in STEPS])
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    asked = parser.parse_args()

    clock = MonotonicClock()
    deadline_s = clock.now() + asked.seconds - min(WINDING_UP_S, asked.seconds / 4)
    sheet = Sheet(Folder(asked.out), asked.step, clock, deadline_s, judged=asked.device == "cuda")
    module = next(step.module for step in STEPS if step.name == asked.step)

    try:
        import_module(f"bench.gpu.{module}").measure(sheet, asked.device)
    except Exception as error:  # noqa: BLE001 - the top of the step: the sheet says that it failed, and why
        traceback.print_exc(file=sys.stderr)
        sheet.fault(f"{type(error).__name__}: {error}".splitlines()[0][:300])

    sheet.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
