"""What becomes of choices whose attempt has failed: another pair, a wait for one, or an error for the client.

Pure. What it does not know: who fails, which pair it would be, how choices are replayed.
"""

from dataclasses import dataclass

from protocol.errors import BatonError, LayoutMismatch, Unavailable


@dataclass(frozen=True)
class RetryRules:
    """`max_attempts` counts the first one. `wait_s` is how long choices may be without a pair, counted from when their
    lost worker was last heard: a restarted worker is back by then, and a client need not wait longer for bad news."""

    max_attempts: int = 3
    wait_s: float = 4.0


@dataclass(frozen=True)
class Retry:
    """Another attempt, now."""


@dataclass(frozen=True)
class Wait:
    """Ask again when a worker has joined, or at `until` (seconds of the clock that `since` is of)."""

    until: float


@dataclass(frozen=True)
class GiveUp:
    """The client gets `error`."""

    error: BatonError


Decision = Retry | Wait | GiveUp
PASSING = (Unavailable, LayoutMismatch)
PASSING_CODES = tuple(kind.code for each in PASSING for kind in (each, *each.__subclasses__()))


def may_go_on(error: BatonError) -> bool:
    """Whether a request that failed with `error` may be served elsewhere, or by the same workers a second time."""
    return isinstance(error, PASSING)


def decide(
    error: BatonError, *, num_attempts: int, has_pair: bool, since: float, now: float, rules: RetryRules
) -> Decision:
    """`num_attempts` were made and the last one failed with `error`; `since` is when its worker was last heard, `now`
    if it still is; `has_pair`: somebody could take over at once."""
    if not may_go_on(error):
        return GiveUp(error)
    if num_attempts >= rules.max_attempts:
        tried = "the only attempt" if num_attempts == 1 else f"the last of {num_attempts} attempts"
        return GiveUp(_final(error, f"{error.message} ({tried})"))
    if has_pair:
        return Retry()
    until = since + rules.wait_s
    if now < until:
        return Wait(until)
    return GiveUp(_final(error, f"{error.message}, and no other worker could take over in {rules.wait_s:g} s"))


def _final(error: BatonError, message: str) -> BatonError:
    """Of the kind of `error` if clients know that as a passing fault."""
    return type(error)(message) if isinstance(error, Unavailable) else Unavailable(message)
