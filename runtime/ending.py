"""Whether a process is about to end and may still hold resources.

The kernel ends a process thread by thread. It first marks each thread as exiting. A thread that is a zombie or gone has
closed all that it was the last to hold. So a free lock does not prove that a device is free until `is_ending` is False.
"""

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_EXITING: Final = 0x4  # PF_EXITING, of the flags in /proc/PID/task/TID/stat
_OVER: Final = "ZX"


def is_ending(pid: int, proc: Path = _PROC) -> bool:
    """Whether a thread of the process is exiting. False if the process runs normally or has ended."""
    tasks = proc / str(pid) / "task"
    try:
        threads = os.listdir(tasks)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(_is_exiting(tasks / thread / "stat") for thread in threads)


def _is_exiting(stat: Path) -> bool:
    try:
        line = stat.read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    state, _ppid, _group, _session, _tty, _tty_group, flags, *_ = line.rpartition(")")[2].split()
    return state not in _OVER and bool(int(flags) & _EXITING)
