"""The life of a unit through its starts: when it is started again, and when it is given up. Pure.

A **unit** is what starts and ends together: the ranks of a group, or one process alone. Its legal moves:

    STARTING --ready--> RUNNING          BACKING_OFF --start_at--> STARTING
    STARTING, RUNNING --ended--> BACKING_OFF until its next start | GIVEN_UP
    STARTING, RUNNING --ended with status 0, so it was told to--> LEFT

    | how it ended                                                 | counts | what follows                          |
    |--------------------------------------------------------------|--------|---------------------------------------|
    | one of its processes was paused, and missed (`is_of_pause`)  | no     | it is started again at once           |
    | otherwise                                                    | yes    | it is started again, at once the      |
    |                                                              |        | first time, then after growing waits  |
    | the same, more often in a row than --max-restarts allows     | yes    | GIVEN_UP                              |

Every unit has served before it has a life here. So no end is hopeless, whatever the process says of it: a folder, a
gateway or an address may be away for a while.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from deploy.sentences import Ended
from protocol.errors import GroupBroken, Unavailable
from protocol.messages_gateway import Role
from runtime.process_life import EXIT_REFUSED
from runtime.supervision import UnitNews, describe_unit

FIRST_WAIT_S = 0.5  # before the second restart in a row; each further wait doubles
MAX_WAIT_S = 30.0
FORGIVEN_AFTER_S = 60.0  # of serving; earlier failures then no longer count
_MISSED = frozenset({GroupBroken.code, Unavailable.code})  # error codes that may follow from a pause


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

    def ended(self, max_restarts: int | None, now: float, *, of_pause: bool = False) -> "Life":
        """The unit has ended. It is GIVEN_UP, or BACKING_OFF until its next start, which may be now. `max_restarts`
        None: it is never given up for the number of its failures; 0: it is never started again."""
        assert self.state in (State.STARTING, State.RUNNING), f"ended while {self.state}"
        served = self.state is State.RUNNING
        earlier = 0 if served and now - self.since >= FORGIVEN_AFTER_S else self.failures
        failures = earlier + (not of_pause)
        is_beyond = max_restarts is not None and (max_restarts == 0 or failures > max_restarts)
        return replace(
            self,
            state=State.GIVEN_UP if is_beyond else State.BACKING_OFF,
            since=now,
            failures=failures,
            start_at=now + (0.0 if of_pause else wait_before_restart_s(failures)),
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


def is_of_pause(ended: Ended) -> bool:
    """Whether the unit ended because a process of it was paused: others have missed it, and it may not go on. A process
    that was killed because it hung, or that ended by a fault of its own, is no such case."""
    missed = ended.code == EXIT_REFUSED or ended.failure_code in _MISSED
    return bool(ended.paused) and missed and not ended.killed_because


def wait_before_restart_s(failures: int) -> float:
    """Seconds to wait after `failures` in a row: 0 after the first, then 0.5, 1, 2, ... up to 30."""
    return 0.0 if failures <= 1 else min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(failures - 2, 30))


def describe_restart(life: Life, max_restarts: int | None, who: str = "it", paused: Collection[str] = ()) -> str:
    """What follows the end of a unit, by its state in `life`. `paused`: the processes whose pause has ended it."""
    follows = describe_unit(news_of("", Role.UNIFIED, life, max_restarts), who, life.since)
    if paused and life.state is not State.GIVEN_UP:
        were = "was" if len(paused) == 1 else "were"
        return f"{', '.join(paused)} {were} paused, so this does not count; {follows}"
    return follows


def news_of(unit: str, role: Role, life: Life, max_restarts: int | None) -> UnitNews:
    """What the gateway is told of a unit."""
    return UnitNews(unit, role, life.state.value, life.since, life.start_at, life.failures, max_restarts)
