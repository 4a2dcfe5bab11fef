"""Which processes are on their way out: real ones in states that last, and a made-up /proc for those that do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.shared_memory import is_ending


def thread(proc: Path, tid: int, state: str, flags: int) -> None:
    folder = proc / "7" / "task" / str(tid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{tid} (a) b) {state} 1 7 7 0 -1 {flags} 10 0 0 0\n")


@pytest.mark.parametrize(
    "threads, expected",
    [
        ([("S", 0x400000)], False),
        ([("R", 0x400004)], True),
        ([("D", 0x4), ("S", 0)], True),
        ([("Z", 0x4)], False),
        ([("X", 0x4)], False),
        ([("Z", 0x4), ("R", 0x4)], True),  # the first thread is over, another may still close what they shared
    ],
)
def test_a_thread_that_is_exiting_may_still_hold_something(
    tmp_path: Path, threads: list[tuple[str, int]], expected: bool
) -> None:
    for tid, (state, flags) in enumerate(threads, 7):
        thread(tmp_path, tid, state, flags)
    assert is_ending(7, tmp_path) == expected


def test_real_processes() -> None:
    assert not is_ending(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not is_ending(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert (Path("/proc") / str(child.pid)).exists() and not is_ending(child.pid)  # a zombie
    child.communicate()
    assert not is_ending(child.pid)
