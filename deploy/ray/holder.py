"""A holder: keeps the processes of one replica alive on this node, from a thread of its own.

    WAITING --start--> STARTING --ready--> SERVING <--> MENDING (a process has ended and is started again)
    STARTING, SERVING, MENDING --start with other flags, or at another gateway--> STARTING
    STARTING, MENDING --no start helps--> GIVEN_UP (Serve replaces the replica)
    SERVING --somebody else has told a process to end--> GIVEN_UP
    any --leave--> LEAVING (SIGTERM, a bounded wait, SIGKILL) --> GONE

The thread forks every process and lives as long as the holder: the kernel ends a process with the thread that forked
it (runtime/process_life.py). So a holder that is killed leaves no process behind. Knows nothing of Ray.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from queue import SimpleQueue
from typing import Any, Final

from deploy.console import Console
from deploy.launcher import GRACE_S, Launcher, StartFailed, Stopped
from deploy.layout import ProcessSpec
from deploy.options import Rules
from deploy.supervisor import Supervisor
from protocol.errors import BatonError
from runtime.clock import MonotonicClock
from runtime.process_life import Stop

Ready = Mapping[str, Mapping[str, Any]]  # the ready event of each process, by name


class HolderState(StrEnum):
    """The state of a holder."""

    WAITING = "waiting"
    STARTING = "starting"
    SERVING = "serving"
    MENDING = "mending"
    GIVEN_UP = "given up"
    LEAVING = "leaving"
    GONE = "gone"


RUNNING: Final = (HolderState.SERVING, HolderState.MENDING)
MOST_RESTARTS: Final = 5  # in a row, without --max-restarts: Serve then replaces the replica, perhaps on another host


class NotServing(BatonError):
    """The processes do not serve, and no further start would help."""

    code = "not_serving"


class Overtaken(BatonError):
    """Another start, or the end, came before the processes served."""

    code = "overtaken"


@dataclass(frozen=True)
class Errand:
    """What to run, by which rules, and how to run it again once it was `ready`."""

    specs: Sequence[ProcessSpec]
    rules: Rules  # without --max-restarts, MOST_RESTARTS is the limit
    again: Callable[[Ready], Sequence[ProcessSpec]]
    ready: "Future[Ready]" = field(default_factory=Future)


def limited(rules: Rules) -> Rules:
    """The rules of a replica. To give it up ends no service, unlike a command of its own: Serve starts another one."""
    return replace(rules, max_restarts=MOST_RESTARTS) if rules.max_restarts is None else rules


class _Listening(Console):
    """The log of the replica, which keeps the last trouble."""

    trouble_told = ""

    def trouble(self, sentence: str) -> None:
        self.trouble_told = sentence
        super().trouble(sentence)


class Holder:
    """Runs one errand at a time. `grace_s`: see Launcher."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.state = HolderState.WAITING
        self._grace_s = grace_s
        self.console = _Listening(with_logs=True)
        self._why = ""
        self._errands: SimpleQueue[Errand | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._running: Stop | None = None  # of the errand that runs; guarded by the lock
        self._gone: Future[None] = Future()
        threading.Thread(target=self._run, name="baton-holder", daemon=True).start()

    def start(self, errand: Errand) -> "Future[Ready]":
        """Ends what runs, then runs `errand`. The future has its ready events, or fails: NotServing, Overtaken."""
        self._put(errand)
        return errand.ready

    def leave(self) -> "Future[None]":
        """Ends everything, for good. The future is done when no process is left."""
        self._put(None)
        return self._gone

    def check(self) -> None:
        """Raises NotServing if the processes were given up."""
        if self.state is HolderState.GIVEN_UP:
            raise NotServing(self._why)

    def _put(self, errand: Errand | None) -> None:
        with self._lock:
            self._errands.put(errand)
            if self._running is not None and not self._running.is_set():
                self._running.request()

    def _run(self) -> None:
        try:
            while (errand := self._errands.get()) is not None:
                self._serve(errand)
            self.state = HolderState.GONE
        finally:
            if self.state is not HolderState.GONE:  # an error of ours, which the log has
                self.state, self._why = HolderState.GIVEN_UP, "the thread that holds the processes has ended"
            with suppress(Exception):
                self._gone.set_result(None)

    def _serve(self, errand: Errand) -> None:
        """Runs an errand until another one or the end comes, or until it is given up."""
        clock, console = MonotonicClock(), self.console
        self.state = HolderState.STARTING
        with (
            Stop() as stop,
            Launcher(console, stop, clock, epochs_after=time.time_ns() // 10**6, grace_s=self._grace_s) as launcher,
        ):
            with self._lock:
                self._running = stop
                if not self._errands.empty():
                    stop.request()
            try:
                ready = launcher.start(errand.specs)
                errand.ready.set_result(ready)
                self._supervise(Supervisor(launcher, errand.again(ready), limited(errand.rules), clock, console), stop)
                if self.state is not HolderState.GIVEN_UP:
                    self.state = HolderState.LEAVING
            except Stopped:
                self.state = HolderState.LEAVING
            except StartFailed as error:
                self._give_up(error.message)
                console.trouble(error.message)
            except BaseException as error:
                self._give_up(f"{type(error).__name__}: {error}")
                raise
            finally:
                self._tell_end(errand)
                with self._lock:
                    self._running = None

    def _supervise(self, supervisor: Supervisor, stop: Stop) -> None:
        while not stop.is_set():
            self.state = HolderState.SERVING if supervisor.all_run else HolderState.MENDING
            supervisor.turn()
            if supervisor.given_up:
                self._give_up(self.console.trouble_told)
                return
            if supervisor.left:
                self._give_up(f"{', '.join(sorted(supervisor.left))} was told to end, not by its holder")
                return

    def _give_up(self, reason: str) -> None:
        self._why, self.state = reason, HolderState.GIVEN_UP

    def _tell_end(self, errand: Errand) -> None:
        """Whoever waits for the errand learns that it will not serve."""
        if not errand.ready.done():
            given_up = self.state is HolderState.GIVEN_UP
            errand.ready.set_exception(NotServing(self._why) if given_up else Overtaken("another start came"))
