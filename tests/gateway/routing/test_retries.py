import pytest

from gateway.routing.choice_record import ChoiceRecord
from gateway.routing.retries import RetryRules, final_error, may_go_on
from protocol.errors import (
    BadRequest,
    BatonError,
    InternalError,
    KvNotDelivered,
    LaunchFailed,
    LayoutMismatch,
    Overloaded,
    Unavailable,
    WireError,
    WorkerLost,
)

RULES = RetryRules(max_attempts=3, wait_s=4.0)
LOST = WorkerLost("decode worker 'd0' is lost")


def after(
    error: BatonError = LOST,
    num_attempts: int = 1,
    has_pair: bool = True,
    since: float = 10.0,
    now: float = 12.0,
    num_launch_failures: int = 0,
) -> BatonError | None:
    choice = ChoiceRecord(8, num_attempts=num_attempts, num_launch_failures=num_launch_failures)
    return final_error(error, choice, has_pair, now - since, RULES)


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (LOST, True),
        (Unavailable("x"), True),
        (KvNotDelivered("x"), True),
        (LayoutMismatch("x"), True),
        (LaunchFailed("x"), True),
        (WireError("x"), False),
        (InternalError("x"), False),
        (BadRequest("x"), False),
        (Overloaded("x"), False),
    ],
)
def test_what_may_go_on_elsewhere(error: BatonError, goes_on: bool) -> None:
    assert may_go_on(error) is goes_on
    for has_pair in (True, False):
        assert after(error, has_pair=has_pair) is (None if goes_on else error)


def test_at_once_when_there_is_a_pair_however_late() -> None:
    assert after(now=10.0) is None and after(now=1000.0) is None


def test_without_a_pair_it_waits_from_when_the_worker_was_last_heard() -> None:
    assert after(has_pair=False, now=13.99) is None
    late = after(has_pair=False, now=14.0)
    assert isinstance(late, WorkerLost)
    assert late.message == "decode worker 'd0' is lost, and no other worker could take over in 4 s"


@pytest.mark.parametrize("has_pair", [True, False])
def test_the_last_attempt_is_the_last(has_pair: bool) -> None:
    assert after(num_attempts=2, has_pair=has_pair) is None
    ended = after(num_attempts=3, has_pair=has_pair)
    assert isinstance(ended, WorkerLost)
    assert ended.message == "decode worker 'd0' is lost (the last of 3 attempts)"


def test_a_request_whose_launch_failed_twice_fells_no_third_worker() -> None:
    broken = LaunchFailed("RuntimeError: broken kernel")
    assert after(broken, num_attempts=2, num_launch_failures=1) is None
    ended = after(broken, num_attempts=2, num_launch_failures=2)
    assert type(ended) is LaunchFailed
    assert ended.message == "RuntimeError: broken kernel (computing it failed 2 times)"
    only = after(broken, num_attempts=3)
    assert type(only) is LaunchFailed, "500: it is no lack of workers"


def test_clients_see_a_passing_fault() -> None:
    for ended in (after(LayoutMismatch("x"), num_attempts=3), after(LayoutMismatch("x"), has_pair=False, now=99.0)):
        assert type(ended) is Unavailable
