"""Decides what happens to choices whose attempt failed: another attempt, a wait for workers, or an error.

Pure functions; dispatch.py acts on the decision.
"""

from dataclasses import dataclass

from protocol.errors import BatonError, LaunchFailed, LayoutMismatch, Unavailable


@dataclass(frozen=True)
class RetryRules:
    """`max_attempts` counts the first one. `wait_s`: how long choices may wait for workers, counted from when their
    lost worker was last heard. A restarted worker is back by then."""

    max_attempts: int
    wait_s: float


@dataclass(frozen=True)
class Retry:
    """Start another attempt now."""


@dataclass(frozen=True)
class Wait:
    """Ask again when a worker has joined, or at `until` (same clock as `since`)."""

    until: float


@dataclass(frozen=True)
class GiveUp:
    """Fail the request with `error`."""

    error: BatonError


Decision = Retry | Wait | GiveUp
PASSING = (Unavailable, LayoutMismatch, LaunchFailed)
MOST_LAUNCH_FAILURES = 2  # of one request: the request itself may break the launches
PASSING_CODES = tuple(kind.code for each in PASSING for kind in (each, *each.__subclasses__()))


def may_go_on(error: BatonError) -> bool:
    """Whether a request that failed with `error` may be tried again, by other workers or the same ones."""
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
    """What to do after `num_attempts`, of which the last failed with `error` and `num_launch_failures` in a launch.

    `since`: when the lost worker was last heard, or `now` if none was lost. `has_pair`: workers are ready to take over.
    """
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
    """The same kind of error if clients know it as a fault of the service, else Unavailable."""
    return type(error)(message) if isinstance(error, Unavailable | LaunchFailed) else Unavailable(message)
