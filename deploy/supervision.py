"""What becomes of a process that ends: started again, at once or after a wait, or given up. Pure: one state table.

    STARTING --ready--> RUNNING          BACKING_OFF --its time has come--> STARTING
    STARTING, RUNNING --ended--> STARTING at once (first failure) | BACKING_OFF | GIVEN_UP

What it does not know: processes, or what a person is told (endings.py).
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from protocol.errors import AddressInUse, Unavailable
from runtime.process_life import EXIT_CONFIG, EXIT_REFUSED

FIRST_WAIT_S = 0.5  # before the second restart in a row; it doubles
MAX_WAIT_S = 30.0
FORGIVEN_AFTER_S = 60.0  # of serving: the failures before it count no more
_PASSING = frozenset({Unavailable.code, AddressInUse.code})  # codes of failures to start that may go by


class State(StrEnum):
    """Where a process is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    GIVEN_UP = "given up"


class Cause(StrEnum):
    """Why a process ended, as far as it matters for what follows."""

    FAILED = "failed"  # it crashed, was killed, was lost by the gateway, or left without being told to
    HOPELESS = "hopeless"  # another start would end the same way


@dataclass(frozen=True)
class Life:
    """One process through its starts. `since` and `start_at` are seconds of one clock."""

    state: State = State.STARTING
    since: float = 0.0  # when this state began
    failures: int = 0  # in a row
    starts: int = 1
    start_at: float = 0.0  # when a process that has ended is to be started


def cause_of(code: int, *, was_ready: bool, failure_code: str = "") -> Cause:
    """Why a process ended with exit status `code` (minus the signal). `failure_code` is the code of the error that it
    named itself, if it did."""
    if was_ready:
        return Cause.FAILED
    is_hopeless = code == EXIT_REFUSED or (code == EXIT_CONFIG and failure_code not in _PASSING)
    return Cause.HOPELESS if is_hopeless else Cause.FAILED


def wait_before_restart_s(failures: int) -> float:
    """Seconds to wait after so many failures in a row: none after the first, then 0.5, 1, 2, ... up to 30."""
    if failures <= 1:
        return 0.0
    return min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(failures - 2, 30))


def ready(life: Life, now: float) -> Life:
    """It serves."""
    assert life.state is State.STARTING, f"ready while {life.state}"
    return replace(life, state=State.RUNNING, since=now)


def ended(life: Life, cause: Cause, max_restarts: int, now: float) -> Life:
    """It has ended. GIVEN_UP, or BACKING_OFF with the time of its next start, which may be now."""
    assert life.state in (State.STARTING, State.RUNNING), f"ended while {life.state}"
    served_well = life.state is State.RUNNING and now - life.since >= FORGIVEN_AFTER_S
    failures = 1 + (0 if served_well else life.failures)
    if cause is Cause.HOPELESS or max_restarts == 0 or failures > max_restarts:
        return replace(life, state=State.GIVEN_UP, since=now, failures=failures)
    start_at = now + wait_before_restart_s(failures)
    return replace(life, state=State.BACKING_OFF, since=now, failures=failures, start_at=start_at)


def is_due(life: Life, now: float) -> bool:
    """Whether it is to be started now."""
    return life.state is State.BACKING_OFF and now >= life.start_at


def started(life: Life, now: float) -> Life:
    """It has been started again."""
    assert life.state is State.BACKING_OFF, f"started while {life.state}"
    return replace(life, state=State.STARTING, since=now, starts=life.starts + 1)
