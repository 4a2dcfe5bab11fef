"""Starts processes, waits until they serve, watches them, ends them. One thread.

A failed start raises StartFailed with one sentence. `turn` reports a later end once; the supervisor then decides
whether to start the process again.
"""

from collections.abc import Iterable, Mapping
from multiprocessing.connection import wait
from typing import Any, Self

from deploy.console import Console
from deploy.devices import show_numbers
from deploy.layout import ProcessSpec
from deploy.processes import ChildProcess, describe_exit
from deploy.sentences import Ended, last_words
from protocol.errors import BatonError
from runtime.clock import Clock
from runtime.process_life import EXIT_CONFIG, StopSignal

SILENCE_S = 600.0  # a start that sends no status event for this long has failed
GRACE_S = 5.0  # from SIGTERM to SIGKILL
LAST_WORDS_S = 30.0  # from a process's status "failed" to its end
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

    def __init__(self, console: Console, stop: StopSignal, clock: Clock) -> None:
        self._console = console
        self._stop = stop
        self._clock = clock
        self._children: dict[str, ChildProcess] = {}
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
            self._children[spec.name] = children[-1]

        while waiting := [child.name for child in children if child.ready is None]:
            for ended in self.turn():
                raise _start_failed(ended)
            for child in children:
                if child.failed is not None and self.silence_s(child.name) > LAST_WORDS_S:
                    raise StartFailed(f"{child.name} cannot start: {_failure(child.failed)}", 1)
            if self._stop.is_set():
                raise Stopped
            if silent := [name for name in waiting if self.silence_s(name) > SILENCE_S]:
                raise StartFailed(f"{', '.join(silent)}: no progress for {SILENCE_S:.0f} s while starting", 1)

        return {child.name: child.ready or {} for child in children}

    def start_again(self, spec: ProcessSpec) -> None:
        """Starts the process again after `turn` has reported its end. `is_ready` tells when it serves. Raises OSError
        if the system cannot start it now."""
        before = self._children[spec.name]
        assert before.is_reported, f"{spec.name} has not ended"
        self._children[spec.name] = ChildProcess(spec, self._clock.now(), is_restart=True)
        before.close()

    def is_ready(self, name: str) -> bool:
        """Whether the process has reported ready since its start. It may have ended since."""
        return self._children[name].ready is not None

    def silence_s(self, name: str) -> float:
        """Seconds since the last status event, or else since the start."""
        return self._clock.now() - self._children[name].heard_at

    def is_beating(self, name: str) -> bool:
        """Whether the process has sent an "alive" event. From then on its silence means that it hangs."""
        return self._children[name].is_beating

    def forgive_silence(self) -> None:
        """Counts the silence of every process from now on."""
        for child in self._children.values():
            child.heard_at = self._clock.now()

    def kill(self, name: str, because: str) -> None:
        """Kills a process and its children. `turn` reports its end with the reason `because`, a predicate."""
        self._children[name].killed_because = because
        self._children[name].kill_group()

    def turn(self, timeout_s: float = _TURN_S) -> list[Ended]:
        """Waits at most `timeout_s` for output, shows it, and returns the processes that ended since the last turn."""
        self._poll(timeout_s)
        ended = [(child, child.exit_code()) for child in self._unreported()]
        return [self._report(child, code) for child, code in ended if code is not None]

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

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _unreported(self) -> list[ChildProcess]:
        return [child for child in self._children.values() if not child.is_reported]

    def _running(self) -> list[str]:
        return [name for name, child in self._children.items() if child.exit_code() is None]

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
                child.failed = event
            elif not child.is_restart:
                self._console.loading(child.name, event)

    def _drain(self, child: ChildProcess) -> None:
        """Reads until the pipes are closed or empty: a process outside the group may hold them open."""
        while wait(child.pipes(), 0):
            self._hear(child)

    def _report(self, child: ChildProcess, code: int) -> Ended:
        child.kill_group()  # ends the child's own children
        self._drain(child)
        child.is_reported = True
        return Ended(
            child.name,
            code,
            child.last_line,
            failure="" if child.failed is None else _failure(child.failed),
            failure_code="" if child.failed is None else str(child.failed.get("code", "")),
            was_ready=child.ready is not None,
            killed_because=child.killed_because,
        )


def _failure(fields: Mapping[str, Any]) -> str:
    return str(fields.get("error") or "no reason given")


def _start_failed(ended: Ended) -> StartFailed:
    status = EXIT_CONFIG if ended.code == EXIT_CONFIG else 1
    if ended.failure:
        return StartFailed(f"{ended.name} cannot start: {ended.failure}", status)
    how = f"{ended.name} ended while starting ({describe_exit(ended.code)})"
    return StartFailed(how + last_words(ended), status)
