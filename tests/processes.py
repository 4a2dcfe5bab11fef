"""What tests ask of processes that may end while they are asked, and of this one."""

import gc
import os
from pathlib import Path

import psutil


def python_path(*folders: Path) -> str:
    """For a child's PYTHONPATH: the folders, then what this process was given, where all of its packages may be."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


def command_line(process: psutil.Process) -> list[str]:
    """Its words; none if it is ending or has ended: a zombie has no command line any more."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more, also when nobody has asked for its exit status yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def num_open_files() -> int:
    """Descriptors of this process, without those of objects that nobody can reach."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
