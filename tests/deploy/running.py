"""`baton serve` with stand-ins as a process of its own, and what one asks of it and its children."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.processes import command_line

DRIVE = Path(__file__).with_name("drive_serve.py")
PATIENCE_S = 300.0


@dataclass
class Serve:
    """A running `baton serve` with stand-ins; what it says on stderr goes to a file."""

    process: "subprocess.Popen[str]"
    errors: Path

    def ready_lines(self) -> list[str]:
        assert self.process.stdout is not None
        return [self.process.stdout.readline().rstrip("\n") for _ in range(2)]

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stderr(self) -> str:
        return self.errors.read_text()

    def wait_for(self, words: str) -> None:
        """Waits until it has said these words. A file that grows has no event."""
        for _ in range(int(PATIENCE_S / 0.01)):
            if words in self.stderr():
                return
            assert self.process.poll() is None, self.stderr()
            select.select([], [], [], 0.01)
        raise AssertionError(f"not said: {words}; {self.stderr()}")

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)


class Starter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.started: list[Serve] = []

    def __call__(self, prefill: str, decode: str, *rules: str) -> Serve:
        errors = self._folder / "stderr"
        with errors.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, str(DRIVE), prefill, decode, *rules], stdout=subprocess.PIPE, stderr=file, text=True
            )
        self.started.append(Serve(process, errors))
        return self.started[-1]


@contextmanager
def starting(folder: Path) -> Iterator[Starter]:
    """Starts commands whose errors go to `folder`, and kills what is left of them."""
    starter = Starter(folder)
    try:
        yield starter
    finally:
        for process in starter.started:
            process.process.kill()
            process.process.communicate()


def wait_all_gone(exit_fds: list[int]) -> bool:
    """Whether every process ends (one that nobody reaps counts as ended, too)."""
    for fd in exit_fds:
        if not select.select([fd], [], [], PATIENCE_S)[0]:
            return False
        os.close(fd)
    return True


def exit_fds(children: list[psutil.Process]) -> list[int]:
    return [os.pidfd_open(child.pid) for child in children]


def child_named(serve: Serve, name: str) -> psutil.Process:
    return next(child for child in serve.children() if f'"{name}"' in " ".join(command_line(child)))
