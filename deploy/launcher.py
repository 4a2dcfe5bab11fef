"""Starts processes, waits until they serve, watches them, ends them. One thread, one selector.

A failed start raises StartFailed with one sentence. `turn` reports a later end once; the supervisor then decides
whether to start the process again.
"""

import select
import selectors
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deploy.console import Console
from deploy.endings import Ended, last_words
from deploy.layout import ProcessSpec
from deploy.number_lists import show_numbers
from deploy.processes import ChildProcess, StatusEvent, describe_exit
from protocol.errors import BatonError
from runtime.clock import Clock
from runtime.process_life import EXIT_CONFIG, StopSignal

SILENCE_S = 600.0  # a start that sends no status event for this long has failed
GRACE_S = 5.0  # from SIGTERM to SIGKILL
LAST_WORDS_S = 3.0  # from a process's status "failed" to its end
_TURN_S = 0.1


class StartFailed(BatonError):
    """A process did not start. `exit_status` is the exit status for the command."""

    code = "start_failed"

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class Stopped(Exception):
    """SIGINT or SIGTERM came during a wait."""


class Launcher:
    """The child processes of one command. Leaving the context ends all of them."""

    def __init__(self, console: Console, stop: StopSignal, clock: Clock, project: Path) -> None:
        self._console = console
        self._stop = stop
        self._clock = clock
        self._project = project
        self._children: dict[str, ChildProcess] = {}
        self._reported: set[str] = set()
        self._ready: dict[str, Mapping[str, Any]] = {}
        self._failed: dict[str, StatusEvent] = {}
        self._news: dict[str, float] = {}  # the time of the last status event, or else of the start
        self._beating: set[str] = set()  # processes that have begun to send "alive" events
        self._killed: dict[str, str] = {}  # the reasons for which `kill` was called
        self._again: set[str] = set()  # restarted processes: their progress is not shown
        self._heard = clock.now()
        self._quiet = False
        self._selector = selectors.DefaultSelector()

    def start(self, specs: Iterable[ProcessSpec]) -> dict[str, Mapping[str, Any]]:
        """Starts processes; returns the fields of their ready events by name. Raises StartFailed or Stopped."""
        names = []
        for spec in specs:
            self._console.starting(spec.name)
            if spec.cpus is not None:
                self._console.note(f"{spec.name} runs on core{'s' * (len(spec.cpus) > 1)} {show_numbers(spec.cpus)}")
            try:
                self._children[spec.name] = ChildProcess(spec, self._project)
            except OSError as error:  # out of processes, descriptors or memory
                raise StartFailed(f"{spec.name} cannot be started: {error}", 1) from error
            self._news[spec.name] = self._clock.now()
            names.append(spec.name)

        self._heard = self._clock.now()
        while not all(name in self._ready for name in names):
            for ended in self.turn():
                raise self._start_failed(ended)
            if self._failed and self._clock.now() - self._heard > LAST_WORDS_S:
                name = next(iter(self._failed))
                raise StartFailed(f"{name} cannot start: {self._failure(name)}", 1)
            if self._stop.is_set():
                raise Stopped
            if self._clock.now() - self._heard > SILENCE_S:
                silent = ", ".join(name for name in names if name not in self._ready)
                raise StartFailed(f"{silent}: no progress for {SILENCE_S:.0f} s while starting", 1)

        return {name: self._ready[name] for name in names}

    def start_again(self, spec: ProcessSpec) -> None:
        """Starts the process again after `turn` has reported its end. `is_ready` tells when it serves. Raises OSError
        if the system cannot start it now."""
        name = spec.name
        assert name in self._reported, f"{name} has not ended"
        child = ChildProcess(spec, self._project)
        self._children[name].close()
        self._children[name] = child
        self._reported.discard(name)
        self._again.add(name)
        self._beating.discard(name)
        self._news[name] = self._clock.now()
        for notes in (self._ready, self._failed, self._killed):
            notes.pop(name, None)

    def is_ready(self, name: str) -> bool:
        """Whether the process has reported ready since its start. It may have ended since."""
        return name in self._ready

    def silence_s(self, name: str) -> float:
        """Seconds since the last status event, or else since the start."""
        return self._clock.now() - self._news[name]

    def is_beating(self, name: str) -> bool:
        """Whether the process has sent an "alive" event. From then on its silence means that it hangs."""
        return name in self._beating

    def forgive_silence(self) -> None:
        """Counts the silence of every process from now on."""
        self._news = dict.fromkeys(self._news, self._clock.now())

    def kill(self, name: str, because: str) -> None:
        """Kills a process and its children. `turn` reports its end with the reason `because`, a predicate."""
        self._killed[name] = because
        self._children[name].kill_group()

    def turn(self, timeout_s: float = _TURN_S) -> list[Ended]:
        """Waits at most `timeout_s` for output, shows it, and returns the processes that ended since the last turn."""
        self._poll(timeout_s)
        ended = [child for name, child in self._children.items() if name not in self._reported]
        ended = [child for child in ended if child.exit_code() is not None]
        return [self._report(child) for child in ended]

    def stop(self, *, quietly: bool = False) -> None:
        """Ends every child: SIGTERM, then SIGKILL after GRACE_S or at a further signal. Returns when all have ended.
        `quietly` hides their remaining logs."""
        signals = self._stop.count
        self._quiet = self._quiet or quietly
        for child in self._children.values():
            child.ask_to_stop()

        deadline = self._clock.now() + GRACE_S
        while self._running() and self._clock.now() < deadline and self._stop.count == signals:
            self._poll(_TURN_S)

        for name in self._running():
            self._console.trouble(f"{name} did not end within its grace and is killed")
        for child in self._children.values():
            child.kill_group()  # no process of the group writes now, so draining ends
            self._drain(child)
            child.close()
        self._children.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._selector.close()

    def _running(self) -> list[str]:
        return [name for name, child in self._children.items() if child.exit_code() is None]

    def _poll(self, timeout_s: float) -> None:
        """Waits once on every descriptor. Registers them each time, because children start, end and close pipes."""
        live = [child for name, child in self._children.items() if name not in self._reported]
        descriptors = {fd for child in live for fd in child.descriptors()} | {self._stop.fd}
        for fd in descriptors:
            self._selector.register(fd, selectors.EVENT_READ)
        self._selector.select(timeout_s)
        for fd in descriptors:
            self._selector.unregister(fd)

        self._stop.clear_wakeup()
        for child in live:
            self._hear(child)
        self._console.refresh()

    def _hear(self, child: ChildProcess) -> None:
        for line in child.log_lines():
            if not self._quiet:
                self._console.log_line(child.name, line)

        for event in child.events():
            self._heard = self._news[child.name] = self._clock.now()
            if event.event == "ready":
                self._ready[child.name] = event.fields
                if child.name not in self._again:
                    self._console.ready(child.name, event.fields)
            elif event.event == "alive":
                self._beating.add(child.name)
            elif event.event == "failed":
                self._failed[child.name] = event
            elif child.name not in self._again:
                self._console.loading(child.name, event.fields)

    def _drain(self, child: ChildProcess) -> None:
        """Reads until the pipes are closed or empty: a process outside the group may hold them open."""
        while (pipes := child.pipes()) and select.select(pipes, (), (), 0)[0]:
            self._hear(child)

    def _report(self, child: ChildProcess) -> Ended:
        child.kill_group()  # ends the child's own children
        self._drain(child)
        self._reported.add(child.name)

        code = child.exit_code()
        assert code is not None
        failed = child.name in self._failed
        return Ended(
            child.name,
            code,
            child.tail[-1] if child.tail else "",
            failure=self._failure(child.name) if failed else "",
            failure_code=str(self._failed[child.name].fields.get("code", "")) if failed else "",
            was_ready=child.name in self._ready,
            killed_because=self._killed.get(child.name, ""),
        )

    def _failure(self, name: str) -> str:
        return str(self._failed[name].fields.get("error", "no reason given"))

    def _start_failed(self, ended: Ended) -> StartFailed:
        status = EXIT_CONFIG if ended.code == EXIT_CONFIG else 1
        if ended.name in self._failed:
            return StartFailed(f"{ended.name} cannot start: {ended.failure}", status)
        how = f"{ended.name} ended while starting ({describe_exit(ended.code)})"
        return StartFailed(how + last_words(ended), status)
