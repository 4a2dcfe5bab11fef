"""One child process: its pipes, its end, and what it has told.

A child has a status pipe and a log pipe, read without blocking, and leads a process group, so that Ctrl-C in the
terminal reaches the launcher alone. The kernel kills the child when the launcher ends, because the child calls
die_with_parent.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.layout import ProcessSpec
from deploy.model_folder import PROJECT
from runtime.process_life import LAUNCHER_PID

MAX_LINE_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024


class LineReader:
    """Reads complete lines from a pipe. `fd` is readable when more may have arrived; it is -1 once closed."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._rest = b""

    def read(self) -> list[str]:
        """The new complete lines, and at end of file an unfinished one. Cuts a line longer than MAX_LINE_BYTES."""
        if self.fd < 0:
            return []
        try:
            got = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return []

        at_end = not got
        *lines, self._rest = (self._rest + got).split(b"\n")
        if self._rest and (at_end or len(self._rest) > MAX_LINE_BYTES):
            lines, self._rest = [*lines, self._rest], b""
        if at_end:
            self.close()
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def close(self) -> None:
        """Closes the pipe's reading end."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class ChildProcess:
    """A running or ended process of Baton. Start it from the main thread, because it ends with the thread that starts
    it. Raises OSError if the system cannot start it; then all its resources are released.

    The launcher notes in it what the process has told. `now` is the time of its start."""

    def __init__(self, spec: ProcessSpec, now: float, *, is_restart: bool = False) -> None:
        self.name = spec.name
        self.is_restart = is_restart  # its progress is not shown
        self.heard_at = now  # the last status event, or else the start
        self.is_beating = False  # it has sent an "alive" event: from then on its silence means that it hangs
        self.leaves_until = 0.0  # it was told to end, and has said how long that may take
        self.ready: Mapping[str, Any] | None = None  # its "ready" event
        self.failure = self.failure_code = ""  # of its "failed" event
        self.failed_at = 0.0  # when it sent that, by its own clock, which all processes of a host share
        self.paused_at: float | None = None  # when its last pause was over, or when it was last seen to be stopped
        self.last_line = ""  # of its log, or a malformed status event
        self.killed_because = ""
        self.ended_for_another = False  # it was killed because another process of its unit had ended
        self._group_killed = False

        with contextlib.ExitStack() as undo, contextlib.ExitStack() as its_ends:
            status_read, status_write = _pipe(undo, its_ends)
            log_read, log_write = _pipe(undo, its_ends)
            if spec.cpus is not None:  # the process inherits this thread's cores
                its_ends.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
                os.sched_setaffinity(0, spec.cpus)

            self.popen = subprocess.Popen(
                [*spec.command, "--status-fd", str(status_write)],
                bufsize=0,
                stdin=subprocess.PIPE if spec.is_told else subprocess.DEVNULL,
                stdout=log_write,
                stderr=log_write,
                pass_fds=(status_write,),
                env=child_environment(spec),
                process_group=0,
            )
            if self.popen.stdin is not None:
                os.set_blocking(self.popen.stdin.fileno(), False)
                undo.callback(self.popen.stdin.close)
            undo.callback(self.popen.wait)
            undo.callback(self.popen.kill)  # the last to be given, so the first to be called

            self.exit_fd = os.pidfd_open(self.popen.pid)  # readable once the process has ended
            self._status, self._log = LineReader(status_read), LineReader(log_read)
            undo.pop_all()

    def descriptors(self) -> tuple[int, ...]:
        """Descriptors to poll: one is readable when `events`, `log_lines` or the exit status may have changed."""
        return self.pipes() + ((self.exit_fd,) if self.popen.returncode is None else ())

    def pipes(self) -> tuple[int, ...]:
        """The open descriptors that `events` and `log_lines` read."""
        return tuple(fd for fd in (self._status.fd, self._log.fd) if fd >= 0)

    def events(self) -> list[dict[str, Any]]:
        """The new status events: objects, whose "event" StatusPipe names. A malformed line becomes `last_line`."""
        told = []
        for line in self._status.read():
            event = parse_status(line)
            if event is None:
                self.last_line = f"malformed status: {line[:200]}"
            else:
                told.append(event)
        return told

    def log_lines(self) -> list[str]:
        """The lines that the process wrote to stdout or stderr since the last call."""
        lines = self._log.read()
        self.last_line = next((line for line in reversed(lines) if line.strip()), self.last_line)
        return lines

    def tell(self, line: bytes) -> bool:
        """Writes a short line to its standard input, whole or not at all. False if it cannot take it now, or ever."""
        assert self.popen.stdin is not None, f"{self.name} is told nothing"
        try:
            return os.write(self.popen.stdin.fileno(), line) == len(line)
        except (BlockingIOError, BrokenPipeError):
            return False

    def is_stopped(self) -> bool:
        """Whether a signal (SIGSTOP) has stopped it, and none has let it go on."""
        if self.popen.poll() is not None:
            return False
        stat = Path(f"/proc/{self.popen.pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[0] in "Tt"

    def kill_group(self) -> None:
        """Sends SIGKILL to the process group, once: later the number may belong to another group."""
        if not self._group_killed:
            self._group_killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kills the group, reaps the process, closes the pipes. Call it once."""
        self.kill_group()
        self.popen.wait()
        if self.popen.stdin is not None:
            self.popen.stdin.close()
        self._status.close()
        self._log.close()
        os.close(self.exit_fd)


def _pipe(undo: contextlib.ExitStack, its_ends: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe: (our end, closed by `undo`; the process's, closed by `its_ends`)."""
    read_fd, write_fd = os.pipe()
    undo.callback(os.close, read_fd)
    its_ends.callback(os.close, write_fd)
    return read_fd, write_fd


def child_environment(spec: ProcessSpec) -> dict[str, str]:
    """The launcher's environment, with PROJECT first in PYTHONPATH, output without a buffer, the launcher's pid (see
    die_with_parent), and the variables of `spec`, which win."""
    path = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PROJECT), *([path] if path else [])]),
        "PYTHONUNBUFFERED": "1",
        LAUNCHER_PID: str(os.getpid()),
        **spec.environment,
    }


def parse_status(line: str) -> dict[str, Any] | None:
    """The object in a status line; None if it is no object with an "event"."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("event"), str) else None
