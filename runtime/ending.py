"""Whether a process is on its way out: ending, and perhaps still holding some of what it had open.

The kernel ends a process thread by thread. Each is marked as exiting first; once it is a zombie, or gone, it has closed
what it was the last to hold. So a lock that is free does not prove that a device is let go, unless this says so too.
What it does not know: what the process held.
"""

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_EXITING: Final = 0x4  # PF_EXITING, of the flags in /proc/PID/task/TID/stat
_OVER: Final = "ZX"


def is_ending(pid: int, proc: Path = _PROC) -> bool:
    """Whether a thread of the process is on its way out. False for one that lives on, and for one that is over."""
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
