"""Keeps the units of one command alive: restarts those that end, kills what hangs, tells the user.

life.py decides what follows the end of a unit: another start, at once or after a wait, or none.
"""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from deploy.child_process import ChildProcess
from deploy.console import Console
from deploy.launcher import SILENCE_S, Launcher
from deploy.layout import GATEWAY, ProcessSpec, by_unit
from deploy.life import Life, State, describe_restart, is_of_pause, news_of
from deploy.options import Rules
from deploy.sentences import Ended, describe_end
from protocol.messages_gateway import Role
from runtime.clock import Clock

TURN_S = 1.0
PAUSED_S = 3.0  # between two turns: this process was paused, so the silence of others does not count

Gone = Callable[[str, Collection[str]], str]  # (unit, all units that are gone for good) -> a sentence for the user


class Supervisor:
    """Supervises started processes, unit by unit. `tell` returns the sentence for a unit that is given up or
    has left. `roles` are those of the units of workers, whose lives the gateway among the processes is told of."""

    def __init__(
        self,
        launcher: Launcher,
        specs: Collection[ProcessSpec],
        rules: Rules,
        clock: Clock,
        console: Console,
        tell: Gone = lambda _name, _given_up: "",
        roles: Mapping[str, Role] = MappingProxyType({}),
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
        self._roles = roles
        self._told: dict[str, Life] = {}  # what the gateway knows
        self._gateway: ChildProcess | None = None  # the process that knows it

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
                self._bury(unit, ended, now)
        for unit, life in self._lives.items():
            if life.is_due(now):
                self._start(unit, now)

        if now - self._turned_at <= PAUSED_S:
            self._kill_what_hangs(now)
        else:
            for child in self._launcher.children.values():
                child.heard_at = now
        self._turned_at = now
        if self._roles:
            self._tell_gateway()

    def _tell_gateway(self) -> None:
        """Tells the gateway what it does not know of the lives of workers. What it cannot take now is told later."""
        gateway = self._launcher.children[GATEWAY]
        if gateway is not self._gateway:
            self._gateway, self._told = gateway, {}
        if gateway.ready is None:
            return
        for unit, role in self._roles.items():
            life = self._lives[unit]
            news = news_of(unit, role, life, self._rules.max_restarts)
            if self._told.get(unit) != life and gateway.tell(news.to_line()):
                self._told[unit] = life

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

    def _bury(self, unit: str, ended: Ended, now: float) -> None:
        of_pause = is_of_pause(ended)
        life = self._lives[unit].ended(self._rules.max_restarts, now, of_pause=of_pause)
        self._tell_end(unit, life, describe_end(ended), ended.paused if of_pause else ())

    def _tell_end(self, unit: str, life: Life, what: str, paused: Collection[str] = ()) -> None:
        self._lives[unit] = life
        size = len(self._units[unit])
        who = "it" if size == 1 else f"group {unit} of {size} ranks"
        sentence = f"{what}; {describe_restart(life, self._rules.max_restarts, who, paused)}"
        meaning = self._tell(unit, self.given_up | self.left) if life.state is State.GIVEN_UP else ""
        self._console.trouble(f"{sentence}. {meaning}" if meaning else sentence)

    def _start(self, unit: str, now: float) -> None:
        life = self._lives[unit] = self._lives[unit].started(now)
        try:
            self._launcher.start_again(self._units[unit], life.starts)
        except OSError as error:  # out of memory or descriptors: a later start may succeed
            self._tell_end(unit, life.ended(self._rules.max_restarts, now), f"{unit} cannot be started: {error}")

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
