"""Starts processes, waits until they serve, watches them, ends them. One thread, the main one.

What starts and ends together is a **unit**: the ranks of a group, or one process alone. When one process of a unit has
ended, the launcher kills the others, which may wait for it in a collective for ever. A failed start raises StartFailed
with one sentence. `turn` reports the later end of a unit once; the supervisor then decides whether to start it again.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Self

from deploy.child_process import ChildProcess
from deploy.console import Console
from deploy.group_folders import GroupFolders
from deploy.layout import GATEWAY, ProcessSpec, by_unit
from deploy.machine import show_numbers
from deploy.sentences import Ended, describe_exit, describe_leaving, last_words
from protocol.errors import BatonError, GroupBroken
from runtime.clock import Clock
from runtime.process_life import EXIT_CONFIG, Stop

SILENCE_S = 600.0  # a start that sends no status event for this long has failed
GRACE_S = 5.0  # if nobody says otherwise
AT_ONCE_S = 2.0  # from a second signal to SIGKILL
LAST_WORDS_S = 30.0  # from a process's status "failed" to its end
PAUSE_FELT_S = 5.0  # between a pause and a failure that may follow from it
_TURN_S = 0.1


class StartFailed(BatonError):
    """A process did not start. `exit_status` is the exit status for the command."""

    code = "start_failed"

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class Stopped(Exception):
    """SIGINT or SIGTERM came during a wait."""


@dataclass
class Unit:
    """The processes of one start of a unit. `folder`: where the ranks of a group meet; empty for a process alone."""

    children: tuple[ChildProcess, ...]
    folder: str
    is_reported: bool = False  # its end has been reported
    leaves_until: float | None = None  # once one of its processes has left: when the others are killed

    def ended(self) -> list[ChildProcess]:
        """Those of its processes that have ended."""
        return [child for child in self.children if child.popen.poll() is not None]

    def culprit(self) -> ChildProcess:
        """The process that ended first, once all have ended. Of several that blame the group, the first to say so."""
        return min(self.children, key=lambda child: (_lateness(child), child.failed_at))

    def paused_around(self, failed_at: float) -> tuple[str, ...]:
        """Those of its processes that were paused at this moment, or shortly before or after it."""
        pauses = {child.name: child.paused_at for child in self.children if child.paused_at is not None}
        return tuple(name for name, at in pauses.items() if abs(at - failed_at) <= PAUSE_FELT_S)


def _lateness(child: ChildProcess) -> int:
    """0: it was told to end. 1: it ended by itself or was killed because it hung. 2: it says that another has broken
    the group. 3: the launcher killed it because another had ended."""
    if child.popen.returncode == 0:
        return 0
    if child.killed_because:
        return 1
    if child.ended_for_another and child.popen.returncode == -signal.SIGKILL:
        return 3
    return 1 + int(child.failure_code == GroupBroken.code)


class Launcher:
    """The child processes of one command, by name. Leaving the context ends all of them.

    Epochs of its groups begin behind `epochs_after`. A gateway may have seen these groups under an earlier command, so
    a command gives a number that is larger than any before: the wall clock's milliseconds. `grace_s`: from SIGTERM to
    SIGKILL, besides the time that a process has said it takes to leave.
    """

    def __init__(
        self, console: Console, stop: Stop, clock: Clock, epochs_after: int = 0, grace_s: float = GRACE_S
    ) -> None:
        self.children: dict[str, ChildProcess] = {}
        self._units: dict[str, Unit] = {}
        self._folders = GroupFolders()
        self._epochs_after = epochs_after
        self._console = console
        self._stop = stop
        self._clock = clock
        self.grace_s = grace_s
        self._quiet = False

    def start(self, specs: Iterable[ProcessSpec]) -> dict[str, Mapping[str, Any]]:
        """Starts processes; returns their ready events by name. Raises StartFailed or Stopped."""
        children: list[ChildProcess] = []
        for name, of_unit in by_unit(specs).items():
            for spec in of_unit:
                self._console.starting(spec.name)
                if spec.cpus is not None:
                    cores = f"core{'s' * (len(spec.cpus) > 1)} {show_numbers(spec.cpus)}"
                    self._console.note(f"{spec.name} runs on {cores}")
            try:
                children += self._begin(name, of_unit, num_starts=1).children
            except OSError as error:  # out of processes, descriptors or memory
                raise StartFailed(f"{name} cannot be started: {error}", 1) from error

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

    def start_again(self, specs: Sequence[ProcessSpec], num_starts: int) -> None:
        """Starts a unit again after `turn` has reported its end; `num_starts` counts its starts. Each child's `ready`
        tells when it serves. Raises OSError if the system cannot start one of them now: then none runs."""
        name = specs[0].unit
        before = self._units[name]
        assert before.is_reported, f"{name} has not ended"
        self._begin(name, specs, num_starts)
        for child in before.children:
            child.close()

    def kill(self, name: str, because: str) -> None:
        """Kills a process and its children. `turn` reports its end with the reason `because`, a predicate."""
        child = self.children[name]
        if child.popen.poll() is None:
            child.killed_because = because
        child.kill_group()

    def turn(self, timeout_s: float = _TURN_S) -> list[Ended]:
        """Waits at most `timeout_s` for output, shows it, and returns how units ended since the last turn: of each the
        process that ended first."""
        self._poll(timeout_s)
        unreported = [unit for unit in self._units.values() if not unit.is_reported]
        return [self._report(unit) for unit in unreported if self._has_ended(unit)]

    def stop(self, *, quietly: bool = False) -> None:
        """Ends every child in good order, and returns when all have ended: the gateway answers what clients have asked,
        then the workers end. A further signal ends all of them at once. `quietly` hides their remaining logs."""
        signals = self._stop.count
        self._quiet = self._quiet or quietly
        everybody = list(self.children.values())
        for stage in ([process for process in everybody if process.name == GATEWAY], everybody):
            self._end(stage, signals)

        deadline = self._clock.now() + AT_ONCE_S
        while self._stop.count > signals and self._running() and self._clock.now() < deadline:
            for name in self._running():
                self.children[name].popen.terminate()  # the second one ends it at once
            self._poll(_TURN_S)

        for name in self._running():
            self._console.trouble(f"{name} did not end within its grace and is killed")
        for child in self.children.values():
            child.kill_group()  # no process of the group writes now, so draining ends
            self._drain(child)
            child.close()
        self.children.clear()
        self._units.clear()
        self._folders.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _end(self, children: Sequence[ChildProcess], signals: int) -> None:
        """Asks processes to end, and waits for each as long as it may take, or until another signal comes."""
        asked_at = self._clock.now()
        if self._stop.count == signals:
            for child in children:
                child.popen.terminate()
        while self._stop.count == signals and any(self._may_run(child, asked_at) for child in children):
            self._poll(_TURN_S)

    def _may_run(self, child: ChildProcess, asked_at: float) -> bool:
        ends_at = max(asked_at, child.leaves_until) + self.grace_s
        return child.popen.poll() is None and self._clock.now() < ends_at

    def _begin(self, name: str, specs: Sequence[ProcessSpec], num_starts: int) -> Unit:
        """Starts the processes of a unit. Raises OSError if one cannot be started: then none runs."""
        with ExitStack() as undo:
            folder = ""
            if specs[0].group:
                folder = self._folders.make()
                undo.callback(self._folders.remove, folder)
            children = []
            for spec in specs:
                placed = spec.in_epoch(self._epochs_after + num_starts, folder) if folder else spec
                children.append(ChildProcess(placed, self._clock.now(), is_restart=num_starts > 1))
                undo.callback(children[-1].close)
            undo.pop_all()

        self.children |= {child.name: child for child in children}
        self._units[name] = Unit(tuple(children), folder)
        return self._units[name]

    def _unreported(self) -> list[ChildProcess]:
        return [child for unit in self._units.values() if not unit.is_reported for child in unit.children]

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
        """Prints its new log lines, and notes its status events. Any other event is progress of loading."""
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
                if "paused_s" in event:
                    child.paused_at = float(event["at"])
            elif event["event"] == "leaving":
                child.leaves_until = child.heard_at + float(event["bound_s"])
                if event["requests"]:
                    self._console.note(describe_leaving(child.name, event["requests"], event["bound_s"]))
            elif event["event"] == "failed":
                child.failure = str(event.get("error") or "no reason given")
                child.failure_code = str(event.get("code", ""))
                child.failed_at = float(event.get("at", child.heard_at))
                self._note_stopped(child)
            elif not child.is_restart:
                self._console.loading(child.name, event)

    def _note_stopped(self, failed: ChildProcess) -> None:
        """A process has failed, perhaps because another one of its unit is paused. That one is killed before it could
        say so: here the kernel says it."""
        for unit in self._units.values():
            if failed in unit.children:
                for child in unit.children:
                    if child.is_stopped():
                        child.paused_at = failed.failed_at

    def _drain(self, child: ChildProcess) -> None:
        """Reads until the pipes are closed or empty: a process outside the group may hold them open."""
        while wait(child.pipes(), 0):
            self._hear(child)

    def _has_ended(self, unit: Unit) -> bool:
        """Whether the whole unit has ended. When one of it has, the others are killed; if it has left, they have a
        moment to leave, too."""
        ended = unit.ended()
        if not ended:
            return False
        if unit.leaves_until is None:
            has_left = all(child.popen.returncode == 0 for child in ended)
            unit.leaves_until = self._clock.now() + (GRACE_S if has_left else 0.0)

        is_over = self._clock.now() >= unit.leaves_until
        for child in unit.children:
            child.ended_for_another = child.ended_for_another or (is_over and child not in ended)
            if is_over or child in ended:
                child.kill_group()  # ends the children of one that has ended, too
        return len(ended) == len(unit.children)

    def _report(self, unit: Unit) -> Ended:
        for child in unit.children:
            self._drain(child)
        unit.is_reported = True
        if unit.folder:
            self._folders.remove(unit.folder)
        child = unit.culprit()
        return Ended(
            child.name,
            child.popen.returncode,
            child.last_line,
            child.failure,
            child.failure_code,
            was_ready=child.ready is not None,
            killed_because=child.killed_because,
            paused=unit.paused_around(child.failed_at),
        )


def _start_failed(ended: Ended) -> StartFailed:
    status = EXIT_CONFIG if ended.code == EXIT_CONFIG else 1
    if ended.failure:
        return StartFailed(f"{ended.name} cannot start: {ended.failure}", status)
    how = f"{ended.name} ended while starting ({describe_exit(ended.code)})"
    return StartFailed(how + last_words(ended), status)
