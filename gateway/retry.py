"""Decides what happens to choices whose attempt failed: another attempt, a wait for workers, or an error.

Pure functions; dispatch.py acts on what they return.
"""

from dataclasses import dataclass

from protocol.errors import BatonError, LaunchFailed, LayoutMismatch, Unavailable


@dataclass(frozen=True)
class RetryRules:
    """`max_attempts` counts the first one. `wait_s`: how long choices may wait for workers, counted from when their
    lost worker was last heard. A restarted worker is back by then."""

    max_attempts: int
    wait_s: float


PASSING = (Unavailable, LayoutMismatch, LaunchFailed)
MOST_LAUNCH_FAILURES = 2  # of one request: the request itself may break the launches
PASSING_CODES = tuple(kind.code for each in PASSING for kind in (each, *each.__subclasses__()))


def may_go_on(error: BatonError) -> bool:
    """Whether a request that failed with `error` may be tried again, by other workers or the same ones."""
    return isinstance(error, PASSING)


def final_error(
    error: BatonError,
    *,
    num_attempts: int,
    num_launch_failures: int,
    has_pair: bool,
    since: float,
    now: float,
    rules: RetryRules,
) -> BatonError | None:
    """The error that ends choices after `num_attempts`, of which the last failed with `error` and `num_launch_failures`
    in a launch. None if they go on: with the ready pair, or without one when a worker has joined.

    `since`: when the lost worker was last heard, or `now` if none was lost. `has_pair`: workers are ready to take over.
    """
    if not may_go_on(error):
        return error

    if num_launch_failures >= MOST_LAUNCH_FAILURES:
        return LaunchFailed(f"{error.message} (computing it failed {num_launch_failures} times)")
    if num_attempts >= rules.max_attempts:
        tried = "the only attempt" if num_attempts == 1 else f"the last of {num_attempts} attempts"
        return _for_client(error, f"{error.message} ({tried})")

    if has_pair or now < since + rules.wait_s:
        return None
    return _for_client(error, f"{error.message}, and no other worker could take over in {rules.wait_s:g} s")


def _for_client(error: BatonError, message: str) -> BatonError:
    """The same kind of error if clients know it as a fault of the service, else Unavailable."""
    return type(error)(message) if isinstance(error, Unavailable | LaunchFailed) else Unavailable(message)
