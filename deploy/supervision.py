"""Decides about a process that ended: start it again, at once or after a wait, or give it up. Pure: one state table.

The legal moves:

    STARTING --ready--> RUNNING          BACKING_OFF --start_at--> STARTING
    STARTING, RUNNING --ended--> BACKING_OFF (no wait after the first failure) | GIVEN_UP
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from protocol.errors import AddressInUse, Unavailable
from runtime.process_life import EXIT_CONFIG, EXIT_REFUSED

FIRST_WAIT_S = 0.5  # before the second restart in a row; each further wait doubles
MAX_WAIT_S = 30.0
FORGIVEN_AFTER_S = 60.0  # of serving; earlier failures then no longer count
_PASSING = frozenset({Unavailable.code, AddressInUse.code})  # error codes of a start that may succeed later


class State(StrEnum):
    """The state of a process."""

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    GIVEN_UP = "given up"


@dataclass(frozen=True)
class Life:
    """One process through its starts. `since` and `start_at` are seconds of one clock."""

    state: State = State.STARTING
    since: float = 0.0  # when this state began
    failures: int = 0  # in a row
    starts: int = 1
    start_at: float = 0.0  # when to start the ended process again


def is_hopeless(code: int, *, was_ready: bool, failure_code: str = "") -> bool:
    """Whether another start of a process would end the same way: this one ended with exit status `code`, or minus the
    signal. `failure_code` is the code of the error that it reported, or empty."""
    return not was_ready and (code == EXIT_REFUSED or (code == EXIT_CONFIG and failure_code not in _PASSING))


def wait_before_restart_s(failures: int) -> float:
    """Seconds to wait after `failures` in a row: 0 after the first, then 0.5, 1, 2, ... up to 30."""
    if failures <= 1:
        return 0.0
    return min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(failures - 2, 30))


def ready(life: Life, now: float) -> Life:
    """The process serves."""
    assert life.state is State.STARTING, f"ready while {life.state}"
    return replace(life, state=State.RUNNING, since=now)


def ended(life: Life, max_restarts: int, now: float, *, hopeless: bool = False) -> Life:
    """The process has ended. It is GIVEN_UP, or BACKING_OFF until its next start, which may be now."""
    assert life.state in (State.STARTING, State.RUNNING), f"ended while {life.state}"
    served_well = life.state is State.RUNNING and now - life.since >= FORGIVEN_AFTER_S
    failures = 1 + (0 if served_well else life.failures)
    if hopeless or max_restarts == 0 or failures > max_restarts:
        return replace(life, state=State.GIVEN_UP, since=now, failures=failures)
    start_at = now + wait_before_restart_s(failures)
    return replace(life, state=State.BACKING_OFF, since=now, failures=failures, start_at=start_at)


def is_due(life: Life, now: float) -> bool:
    """Whether to start the process now."""
    return life.state is State.BACKING_OFF and now >= life.start_at


def started(life: Life, now: float) -> Life:
    """The process has been started again."""
    assert life.state is State.BACKING_OFF, f"started while {life.state}"
    return replace(life, state=State.STARTING, since=now, starts=life.starts + 1)
