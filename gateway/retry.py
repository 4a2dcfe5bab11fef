"""What becomes of choices whose attempt has failed: another pair, a wait for one, or an error for the client.

Pure. What it does not know: who fails, which pair it would be, how choices are replayed.
"""

from dataclasses import dataclass

from protocol.errors import BatonError, LaunchFailed, LayoutMismatch, Unavailable


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
PASSING = (Unavailable, LayoutMismatch, LaunchFailed)
MOST_LAUNCH_FAILURES = 2  # of one request: it may be what fells the workers that compute it
PASSING_CODES = tuple(kind.code for each in PASSING for kind in (each, *each.__subclasses__()))


def may_go_on(error: BatonError) -> bool:
    """Whether a request that failed with `error` may be served elsewhere, or by the same workers a second time."""
    return isinstance(error, PASSING)


def decide(
    error: BatonError,
    *,
    num_attempts: int,
    num_launch_failures: int = 0,
    has_pair: bool,
    since: float,
    now: float,
    rules: RetryRules,
) -> Decision:
    """`num_attempts` were made and the last one failed with `error`; of all of them, `num_launch_failures` because a
    launch raised. `since` is when its worker was last heard, `now` if it still is; `has_pair`: somebody could take over
    at once."""
    if not may_go_on(error):
        return GiveUp(error)
    if num_launch_failures >= MOST_LAUNCH_FAILURES:
        return GiveUp(LaunchFailed(f"{error.message} (computing it failed {num_launch_failures} times)"))
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
    """Of the kind of `error`, unless clients would not know that as a fault of the service."""
    return type(error)(message) if isinstance(error, Unavailable | LaunchFailed) else Unavailable(message)
