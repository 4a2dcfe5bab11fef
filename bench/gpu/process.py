"""One step in a process of its own, with a time limit: whatever it does, it and all that it has started are gone then.

What it does not know: what the step does.
"""

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
    """Runs `command`; what it says goes to the end of `log`. Returns why it has failed, "" if it has not."""
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
    """Kills the process, its descendants, and whoever is left in its session; returns when they are gone."""
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
