"""Starts processes, waits until they serve, watches them, ends them. One thread, the main one.

Each child has a status pipe and a log pipe, read without blocking, and leads a process group, so that Ctrl-C in the
terminal reaches the launcher alone. The kernel kills the child when the launcher ends, because the child calls
die_with_parent. A failed start raises StartFailed with one sentence. `turn` reports a later end once; the supervisor
then decides whether to start the process again.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from multiprocessing.connection import wait
from typing import Any, Self

from deploy.console import Console
from deploy.layout import ProcessSpec
from deploy.machine import show_numbers
from deploy.model_folder import PROJECT
from deploy.sentences import Ended, describe_exit, last_words
from protocol.errors import BatonError
from runtime.clock import Clock
from runtime.process_life import EXIT_CONFIG, LAUNCHER_PID, StopSignal

SILENCE_S = 600.0  # a start that sends no status event for this long has failed
GRACE_S = 5.0  # from SIGTERM to SIGKILL
LAST_WORDS_S = 30.0  # from a process's status "failed" to its end
MAX_LINE_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_TURN_S = 0.1


class StartFailed(BatonError):
    """A process did not start. `exit_status` is the exit status for the command."""

    code = "start_failed"

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class Stopped(Exception):
    """SIGINT or SIGTERM came during a wait."""


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
        self.ready: Mapping[str, Any] | None = None  # its "ready" event
        self.failure = self.failure_code = ""  # of its "failed" event
        self.last_line = ""  # of its log, or a malformed status event
        self.killed_because = ""
        self.is_reported = False  # its end has been reported
        self._group_killed = False

        with contextlib.ExitStack() as undo, contextlib.ExitStack() as its_ends:
            status_read, status_write = _pipe(undo, its_ends)
            log_read, log_write = _pipe(undo, its_ends)
            if spec.cpus is not None:  # the process inherits this thread's cores
                its_ends.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
                os.sched_setaffinity(0, spec.cpus)

            self.popen = subprocess.Popen(
                [*spec.command, "--status-fd", str(status_write)],
                stdin=subprocess.DEVNULL,
                stdout=log_write,
                stderr=log_write,
                pass_fds=(status_write,),
                env=child_environment(spec),
                process_group=0,
            )
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
        found = []
        for line in self._status.read():
            event = parse_status(line)
            if event is None:
                self.last_line = f"malformed status: {line[:200]}"
            else:
                found.append(event)
        return found

    def log_lines(self) -> list[str]:
        """The lines that the process wrote to stdout or stderr since the last call."""
        lines = self._log.read()
        self.last_line = next((line for line in reversed(lines) if line.strip()), self.last_line)
        return lines

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
    """The launcher's environment, with PROJECT first in PYTHONPATH and the variables of `spec`."""
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
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


class Launcher:
    """The child processes of one command, by name. Leaving the context ends all of them."""

    def __init__(self, console: Console, stop: StopSignal, clock: Clock) -> None:
        self.children: dict[str, ChildProcess] = {}
        self._console = console
        self._stop = stop
        self._clock = clock
        self._quiet = False

    def start(self, specs: Iterable[ProcessSpec]) -> dict[str, Mapping[str, Any]]:
        """Starts processes; returns their ready events by name. Raises StartFailed or Stopped."""
        children = []
        for spec in specs:
            self._console.starting(spec.name)
            if spec.cpus is not None:
                self._console.note(f"{spec.name} runs on core{'s' * (len(spec.cpus) > 1)} {show_numbers(spec.cpus)}")
            try:
                children.append(ChildProcess(spec, self._clock.now()))
            except OSError as error:  # out of processes, descriptors or memory
                raise StartFailed(f"{spec.name} cannot be started: {error}", 1) from error
            self.children[spec.name] = children[-1]

        while waiting := [child for child in children if child.ready is None]:
            for ended in self.turn():
                raise _start_failed(ended)
            now = self._clock.now()
            for child in children:
                if child.failure and now - child.heard_at > LAST_WORDS_S:
                    raise StartFailed(f"{child.name} cannot start: {child.failure}", 1)
            if self._stop.is_set():
                raise Stopped
            if silent := [child.name for child in waiting if now - child.heard_at > SILENCE_S]:
                raise StartFailed(f"{', '.join(silent)}: no progress for {SILENCE_S:.0f} s while starting", 1)

        return {child.name: child.ready or {} for child in children}

    def start_again(self, spec: ProcessSpec) -> None:
        """Starts the process again after `turn` has reported its end. Its child's `ready` tells when it serves. Raises
        OSError if the system cannot start it now."""
        before = self.children[spec.name]
        assert before.is_reported, f"{spec.name} has not ended"
        self.children[spec.name] = ChildProcess(spec, self._clock.now(), is_restart=True)
        before.close()

    def kill(self, name: str, because: str) -> None:
        """Kills a process and its children. `turn` reports its end with the reason `because`, a predicate."""
        self.children[name].killed_because = because
        self.children[name].kill_group()

    def turn(self, timeout_s: float = _TURN_S) -> list[Ended]:
        """Waits at most `timeout_s` for output, shows it, and returns the processes that ended since the last turn."""
        self._poll(timeout_s)
        return [self._report(child) for child in self._unreported() if child.popen.poll() is not None]

    def stop(self, *, quietly: bool = False) -> None:
        """Ends every child: SIGTERM, then SIGKILL after GRACE_S or at a further signal. Returns when all have ended.
        `quietly` hides their remaining logs."""
        signals = self._stop.count
        self._quiet = self._quiet or quietly
        for child in self.children.values():
            child.popen.terminate()

        deadline = self._clock.now() + GRACE_S
        while self._running() and self._clock.now() < deadline and self._stop.count == signals:
            self._poll(_TURN_S)

        for name in self._running():
            self._console.trouble(f"{name} did not end within its grace and is killed")
        for child in self.children.values():
            child.kill_group()  # no process of the group writes now, so draining ends
            self._drain(child)
            child.close()
        self.children.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _unreported(self) -> list[ChildProcess]:
        return [child for child in self.children.values() if not child.is_reported]

    def _running(self) -> list[str]:
        return [name for name, child in self.children.items() if child.popen.poll() is None]

    def _poll(self, timeout_s: float) -> None:
        """Waits once on every descriptor, then hears every process."""
        live = self._unreported()
        wait([self._stop.fd, *(fd for child in live for fd in child.descriptors())], timeout_s)

        self._stop.clear_wakeup()
        for child in live:
            self._hear(child)
        self._console.refresh()

    def _hear(self, child: ChildProcess) -> None:
        for line in child.log_lines():
            if not self._quiet:
                self._console.log_line(child.name, line)

        for event in child.events():
            child.heard_at = self._clock.now()
            if event["event"] == "ready":
                child.ready = event
                if not child.is_restart:
                    self._console.ready(child.name, event)
            elif event["event"] == "alive":
                child.is_beating = True
            elif event["event"] == "failed":
                child.failure = str(event.get("error") or "no reason given")
                child.failure_code = str(event.get("code", ""))
            elif not child.is_restart:
                self._console.loading(child.name, event)

    def _drain(self, child: ChildProcess) -> None:
        """Reads until the pipes are closed or empty: a process outside the group may hold them open."""
        while wait(child.pipes(), 0):
            self._hear(child)

    def _report(self, child: ChildProcess) -> Ended:
        child.kill_group()  # ends the child's own children
        self._drain(child)
        child.is_reported = True
        return Ended(
            child.name,
            child.popen.returncode,
            child.last_line,
            child.failure,
            child.failure_code,
            was_ready=child.ready is not None,
            killed_because=child.killed_because,
        )


def _start_failed(ended: Ended) -> StartFailed:
    status = EXIT_CONFIG if ended.code == EXIT_CONFIG else 1
    if ended.failure:
        return StartFailed(f"{ended.name} cannot start: {ended.failure}", status)
    how = f"{ended.name} ended while starting ({describe_exit(ended.code)})"
    return StartFailed(how + last_words(ended), status)
