"""`python -m bench.gpu.machine DEVICE`: the machine and its software as one JSON object.

Without that device, status 2 and a sentence.
"""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import torch

from bench.gpu.records import Value

EXIT_CONFIG: Final = 2


def facts(device: str) -> dict[str, Value]:
    """Names and values for the first lines of the page."""
    found: dict[str, Value] = {"device": device_words(device), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    found |= {"commit": _commit(), "Python": platform.python_version(), "torch": torch.__version__}
    found |= {name: _version(name) for name in ("triton", "transformers")}
    if device == "cuda":
        about = torch.cuda.get_device_properties(0)
        found |= {"multiprocessors": about.multi_processor_count, "device GB": round(about.total_memory / 1e9, 1)}
        found |= {"CUDA": torch.version.cuda, "GPUs": torch.cuda.device_count()}
    return found | {"cores": len(os.sched_getaffinity(0))}


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


def main() -> int:
    """The command."""
    device = sys.argv[1]
    if device == "cuda" and not torch.cuda.is_available():
        print("make gpu: torch finds no CUDA device here; DEVICE=cpu runs the same steps with tiny shapes")
        return EXIT_CONFIG
    print(json.dumps(facts(device)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
