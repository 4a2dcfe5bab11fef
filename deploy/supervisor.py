"""Keeps the units of one command alive: restarts those that end, kills what hangs, tells the user.

A **unit** is what starts and ends together: the ranks of a group, or one process alone. `Life` decides about a unit
that ended: start it again, at once or after a wait, or give it up. Its legal moves:

    STARTING --ready--> RUNNING          BACKING_OFF --start_at--> STARTING
    STARTING, RUNNING --ended--> BACKING_OFF (no wait after the first failure) | GIVEN_UP
    STARTING, RUNNING --ended with status 0, so it was told to--> LEFT
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from deploy.child_process import ChildProcess
from deploy.console import Console
from deploy.launcher import SILENCE_S, Launcher
from deploy.layout import ProcessSpec, by_unit
from deploy.options import Rules
from deploy.sentences import Ended, describe_end
from protocol.errors import AddressInUse, Unavailable
from runtime.clock import Clock
from runtime.process_life import EXIT_CONFIG, EXIT_REFUSED

TURN_S = 1.0
PAUSED_S = 3.0  # between two turns: this process was paused, so the silence of others does not count
FIRST_WAIT_S = 0.5  # before the second restart in a row; each further wait doubles
MAX_WAIT_S = 30.0
FORGIVEN_AFTER_S = 60.0  # of serving; earlier failures then no longer count
_PASSING = frozenset({Unavailable.code, AddressInUse.code})  # error codes of a start that may succeed later

Gone = Callable[[str, Collection[str]], str]  # (unit, all units that are gone for good) -> a sentence for the user


class State(StrEnum):
    """The state of a unit."""

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    GIVEN_UP = "given up"
    LEFT = "left"


@dataclass(frozen=True)
class Life:
    """One unit through its starts. Times are seconds of one clock."""

    state: State = State.STARTING
    since: float = 0.0  # when this state began
    failures: int = 0  # in a row
    starts: int = 1
    start_at: float = 0.0  # when to start the ended unit again
    down_since: float = 0.0  # when it last ended while it served

    def ready(self, now: float) -> "Life":
        """All of the unit serves."""
        assert self.state is State.STARTING, f"ready while {self.state}"
        return replace(self, state=State.RUNNING, since=now)

    def ended(self, max_restarts: int, now: float, *, hopeless: bool = False) -> "Life":
        """The unit has ended. It is GIVEN_UP, or BACKING_OFF until its next start, which may be now."""
        assert self.state in (State.STARTING, State.RUNNING), f"ended while {self.state}"
        served = self.state is State.RUNNING
        failures = 1 + (0 if served and now - self.since >= FORGIVEN_AFTER_S else self.failures)
        gives_up = hopeless or max_restarts == 0 or failures > max_restarts
        return replace(
            self,
            state=State.GIVEN_UP if gives_up else State.BACKING_OFF,
            since=now,
            failures=failures,
            start_at=now + wait_before_restart_s(failures),
            down_since=now if served else self.down_since,
        )

    def left(self, now: float) -> "Life":
        """The unit was told to end, and has ended. It is not started again."""
        assert self.state in (State.STARTING, State.RUNNING), f"left while {self.state}"
        return replace(self, state=State.LEFT, since=now)

    def is_due(self, now: float) -> bool:
        """Whether to start the unit now."""
        return self.state is State.BACKING_OFF and now >= self.start_at

    def started(self, now: float) -> "Life":
        """The unit has been started again."""
        assert self.state is State.BACKING_OFF, f"started while {self.state}"
        return replace(self, state=State.STARTING, since=now, starts=self.starts + 1)


def is_hopeless(ended: Ended) -> bool:
    """Whether another start of the process would end the same way."""
    refused = ended.code == EXIT_REFUSED or (ended.code == EXIT_CONFIG and ended.failure_code not in _PASSING)
    return refused and not ended.was_ready


def wait_before_restart_s(failures: int) -> float:
    """Seconds to wait after `failures` in a row: 0 after the first, then 0.5, 1, 2, ... up to 30."""
    return 0.0 if failures <= 1 else min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(failures - 2, 30))


def describe_restart(life: Life, max_restarts: int, who: str = "it") -> str:
    """What follows the end of a unit, by its state in `life`."""
    if life.state is State.GIVEN_UP:
        if max_restarts == 0:
            return f"{who} is not started again (--max-restarts 0)"
        if life.failures > max_restarts:
            return f"{who} is given up after {max_restarts} restart{'s' * (max_restarts > 1)} in a row"
        return f"{who} is given up, as another start would end the same way"
    wait_s = life.start_at - life.since
    if wait_s <= 0:
        return f"{who} is started again at once"
    return f"{who} is started again in {wait_s:g} s, restart {life.failures} of {max_restarts} in a row"


class Supervisor:
    """Supervises started processes, unit by unit. `tell` returns the sentence for a unit that is given up or
    has left."""

    def __init__(
        self,
        launcher: Launcher,
        specs: Collection[ProcessSpec],
        rules: Rules,
        clock: Clock,
        console: Console,
        tell: Gone = lambda _name, _given_up: "",
    ) -> None:
        self._launcher = launcher
        self._units = by_unit(specs)
        self._unit_of = {spec.name: spec.unit for spec in specs}
        self._rules = rules
        self._clock = clock
        self._console = console
        self._tell = tell
        self._turned_at = clock.now()
        self._lives = dict.fromkeys(self._units, Life(State.RUNNING, self._turned_at))

    @property
    def given_up(self) -> set[str]:
        """Names of the units that could not be kept alive."""
        return self._units_in(State.GIVEN_UP)

    @property
    def left(self) -> set[str]:
        """Names of the units that were told to end, and have ended."""
        return self._units_in(State.LEFT)

    def _units_in(self, state: State) -> set[str]:
        return {unit for unit, life in self._lives.items() if life.state is state}

    @property
    def all_run(self) -> bool:
        """Whether every unit serves."""
        return all(life.state is State.RUNNING for life in self._lives.values())

    def turn(self) -> None:
        """Waits TURN_S at most; then restarts units that are due and kills what hangs."""
        endings = self._launcher.turn(self._timeout_s())
        now = self._clock.now()
        self._note_ready(now)

        for ended in endings:
            unit = self._unit_of[ended.name]
            if ended.code == 0:
                self._let_go(unit, now)
            else:
                self._bury(unit, describe_end(ended), now, hopeless=is_hopeless(ended))
        for unit, life in self._lives.items():
            if life.is_due(now):
                self._start(unit, now)

        if now - self._turned_at <= PAUSED_S:
            self._kill_what_hangs(now)
        else:
            for child in self._launcher.children.values():
                child.heard_at = now
        self._turned_at = now

    def _timeout_s(self) -> float:
        due = [life.start_at for life in self._lives.values() if life.state is State.BACKING_OFF]
        return max(0.0, min([TURN_S, *(at - self._clock.now() for at in due)]))

    def _children(self, unit: str) -> list[ChildProcess]:
        return [self._launcher.children[spec.name] for spec in self._units[unit]]

    def _note_ready(self, now: float) -> None:
        for unit, life in self._lives.items():
            if life.state is State.STARTING and all(child.ready is not None for child in self._children(unit)):
                self._lives[unit] = life.ready(now)
                took_s = now - life.down_since
                self._console.note(f"{unit} serves again after {took_s:.1f} s, restart {life.starts - 1}")

    def _let_go(self, unit: str, now: float) -> None:
        self._lives[unit] = self._lives[unit].left(now)
        meaning = self._tell(unit, self.given_up | self.left)
        self._console.note(f"{unit} has left. {meaning}".rstrip())

    def _bury(self, unit: str, what: str, now: float, *, hopeless: bool = False) -> None:
        life = self._lives[unit].ended(self._rules.max_restarts, now, hopeless=hopeless)
        self._lives[unit] = life
        size = len(self._units[unit])
        who = "it" if size == 1 else f"group {unit} of {size} ranks"
        sentence = f"{what}; {describe_restart(life, self._rules.max_restarts, who)}"
        meaning = self._tell(unit, self.given_up | self.left) if life.state is State.GIVEN_UP else ""
        self._console.trouble(f"{sentence}. {meaning}" if meaning else sentence)

    def _start(self, unit: str, now: float) -> None:
        life = self._lives[unit] = self._lives[unit].started(now)
        try:
            self._launcher.start_again(self._units[unit], life.starts)
        except OSError as error:  # out of memory or descriptors: a later start may succeed
            self._bury(unit, f"{unit} cannot be started: {error}", now)

    def _kill_what_hangs(self, now: float) -> None:
        """Kills the process of each unit that has been silent for longest, if that is too long. The launcher then kills
        the rest of its unit."""
        for unit, life in self._lives.items():
            if life.state not in (State.STARTING, State.RUNNING):
                continue
            hung = [child for child in self._children(unit) if self._hangs(child, life.state, now)]
            if hung:
                first = min(hung, key=lambda child: child.heard_at)
                self._launcher.kill(first.name, f"gave no sign of life for {now - first.heard_at:.0f} s")

    def _hangs(self, child: ChildProcess, state: State, now: float) -> bool:
        limit_s = self._rules.hang_limit_s if child.is_beating else SILENCE_S
        is_watched = state is State.STARTING or child.is_beating
        return is_watched and 0 < limit_s < now - child.heard_at
