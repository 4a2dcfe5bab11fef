"""Runs one step in its own process, with a time limit. Afterwards the process and all that it started are gone."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from loadtest.peer import session_members
from loadtest.tied import tied

GONE_S: Final = 10.0


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
    doomed = []
    for pid in session_members(child.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            doomed.append(psutil.Process(pid))
    with contextlib.suppress(psutil.NoSuchProcess):
        doomed += psutil.Process(child.pid).children(recursive=True)
    for process in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if child.returncode is None:
        child.kill()
        child.wait()
    psutil.wait_procs(doomed, timeout=GONE_S)
