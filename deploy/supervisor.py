"""Keeps the processes of one command alive: restarts those that end, kills those that hang, tells the user.

supervision.py decides, launcher.py acts.
"""

from collections.abc import Callable, Collection

from deploy import supervision
from deploy.console import Console
from deploy.launcher import SILENCE_S, Launcher
from deploy.layout import ProcessSpec
from deploy.options import Rules
from deploy.sentences import Ended, describe_end, describe_restart
from deploy.supervision import Life, State, is_due, is_hopeless
from runtime.clock import Clock

TURN_S = 1.0
PAUSED_S = 3.0  # between two turns: this process was paused, so the silence of others does not count

GivenUp = Callable[[str, Collection[str]], str]  # (name, all names given up) -> a sentence for the user


class Supervisor:
    """Supervises started processes. `tell` returns the sentence for a process that is given up."""

    def __init__(
        self,
        launcher: Launcher,
        specs: Collection[ProcessSpec],
        rules: Rules,
        clock: Clock,
        console: Console,
        tell: GivenUp = lambda _name, _given_up: "",
    ) -> None:
        self._launcher = launcher
        self._specs = {spec.name: spec for spec in specs}
        self._rules = rules
        self._clock = clock
        self._console = console
        self._tell = tell
        now = clock.now()
        self._lives = {name: Life(State.RUNNING, now) for name in self._specs}
        self._ended_at: dict[str, float] = {}  # processes that have ended and do not serve again yet
        self._turned_at = now

    @property
    def given_up(self) -> set[str]:
        """Names of the processes that will not be started again."""
        return {name for name, life in self._lives.items() if life.state is State.GIVEN_UP}

    def turn(self) -> None:
        """Waits TURN_S at most; then restarts processes that are due and kills those that hang."""
        endings = self._launcher.turn(self._timeout_s())
        now = self._clock.now()
        self._note_ready(now)

        for ended in endings:
            self._bury(ended, now)
        for name, life in self._lives.items():
            if is_due(life, now):
                self._start(name, now)

        if now - self._turned_at <= PAUSED_S:
            self._kill_what_hangs()
        else:
            self._launcher.forgive_silence()
        self._turned_at = now

    def _timeout_s(self) -> float:
        due = [life.start_at for life in self._lives.values() if life.state is State.BACKING_OFF]
        return max(0.0, min([TURN_S, *(at - self._clock.now() for at in due)]))

    def _note_ready(self, now: float) -> None:
        for name, life in self._lives.items():
            if life.state is State.STARTING and self._launcher.is_ready(name):
                self._lives[name] = supervision.ready(life, now)
                took_s = now - self._ended_at.pop(name)
                self._console.note(f"{name} serves again after {took_s:.1f} s, restart {life.starts - 1}")

    def _bury(self, ended: Ended, now: float) -> None:
        name = ended.name
        hopeless = is_hopeless(ended.code, was_ready=ended.was_ready, failure_code=ended.failure_code)
        life = supervision.ended(self._lives[name], self._rules.max_restarts, now, hopeless=hopeless)
        self._lives[name] = life
        self._ended_at.setdefault(name, now)
        self._say(name, life, describe_end(ended))

    def _say(self, name: str, life: Life, what: str) -> None:
        sentence = f"{what}; {describe_restart(life, self._rules.max_restarts)}"
        meaning = self._tell(name, self.given_up) if life.state is State.GIVEN_UP else ""
        self._console.trouble(f"{sentence}. {meaning}" if meaning else sentence)

    def _start(self, name: str, now: float) -> None:
        life = supervision.started(self._lives[name], now)
        self._lives[name] = life
        try:
            self._launcher.start_again(self._specs[name])
        except OSError as error:  # out of memory or descriptors: a later start may succeed
            life = supervision.ended(life, self._rules.max_restarts, now)
            self._lives[name] = life
            self._say(name, life, f"{name} cannot be started: {error}")

    def _kill_what_hangs(self) -> None:
        for name, life in self._lives.items():
            if life.state not in (State.STARTING, State.RUNNING):
                continue
            silence_s = self._launcher.silence_s(name)
            limit_s = self._rules.hang_limit_s if self._launcher.is_beating(name) else SILENCE_S
            if limit_s and silence_s > limit_s and (life.state is State.STARTING or self._launcher.is_beating(name)):
                self._launcher.kill(name, f"gave no sign of life for {silence_s:.0f} s")
