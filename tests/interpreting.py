"""Triton kernels in its interpreter, in a process of its own: TRITON_INTERPRET is read once, at the first import."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 900  # for what takes half a minute; only a failure takes so long


def check_interpreted(path: str, *flags: str) -> None:
    """Runs the tests of the file `path`, relative to the root, in the interpreter, with these flags of pytest.

    AssertionError unless they pass.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *flags, path],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
