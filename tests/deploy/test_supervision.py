import pytest

from deploy import supervision
from deploy.supervision import Cause, Life, State, cause_of, is_due, wait_before_restart_s
from runtime.process_life import EXIT_REFUSED

RUNNING = Life(State.RUNNING, since=100.0)


def fail_again_and_again(life: Life, max_restarts: int, ready: bool, cause: Cause = Cause.FAILED) -> list[float]:
    """Waits before each restart until it is given up, when each start takes 1 s and fails, or serves 1 s and fails."""
    now, waits = 100.0, []
    while (life := supervision.ended(life, cause, max_restarts, now)).state is State.BACKING_OFF:
        waits.append(life.start_at - now)
        assert is_due(life, life.start_at) and not is_due(life, life.start_at - 0.01)
        now = life.start_at
        life = supervision.started(life, now)
        assert life.state is State.STARTING and not is_due(life, now + 1000.0)
        now += 1.0
        if ready:
            life = supervision.ready(life, now)
            now += 1.0
    assert life.state is State.GIVEN_UP and not is_due(life, now + 1000.0)
    assert life.starts == 1 + len(waits)
    return waits


@pytest.mark.parametrize("ready", [False, True])
def test_at_once_then_longer_and_longer_then_given_up(ready: bool) -> None:
    assert fail_again_and_again(RUNNING, 5, ready) == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert fail_again_and_again(RUNNING, 1, ready) == [0.0]
    assert fail_again_and_again(RUNNING, 9, ready)[-3:] == [16.0, 30.0, 30.0]


def test_no_wait_is_beyond_its_bound() -> None:
    assert [wait_before_restart_s(failures) for failures in (0, 1, 2, 8, 1_000_000)] == [0.0, 0.0, 0.5, 30.0, 30.0]


@pytest.mark.parametrize("cause", Cause)
def test_nothing_is_started_again_where_that_is_not_wanted(cause: Cause) -> None:
    assert supervision.ended(RUNNING, cause, 0, 200.0).state is State.GIVEN_UP


def test_what_served_well_begins_anew() -> None:
    worn = Life(State.RUNNING, since=100.0, failures=5, starts=6)
    assert supervision.ended(worn, Cause.FAILED, 5, 159.9).state is State.GIVEN_UP
    life = supervision.ended(worn, Cause.FAILED, 5, 160.0)
    assert (life.state, life.failures, life.start_at) == (State.BACKING_OFF, 1, 160.0)


def test_a_long_start_forgives_nothing() -> None:
    starting = Life(State.STARTING, since=100.0, failures=5)
    assert supervision.ended(starting, Cause.FAILED, 5, 500.0).state is State.GIVEN_UP


def test_who_is_lost_soon_after_every_start_is_counted_and_given_up() -> None:
    cause = cause_of(EXIT_REFUSED, was_ready=True, failure_code="refused")
    assert fail_again_and_again(RUNNING, 5, ready=True, cause=cause) == [0.0, 0.5, 1.0, 2.0, 4.0]
    served_long = Life(State.RUNNING, since=100.0, failures=5)
    life = supervision.ended(served_long, cause, 5, 200.0)
    assert (life.state, life.failures, life.start_at) == (State.BACKING_OFF, 1, 200.0)


def test_what_is_hopeless_is_given_up_at_once() -> None:
    starting = Life(State.STARTING, since=100.0)
    assert supervision.ended(starting, Cause.HOPELESS, 5, 101.0).state is State.GIVEN_UP


@pytest.mark.parametrize(
    "code, was_ready, failure_code, cause",
    [
        (-9, True, "", Cause.FAILED),
        (-9, False, "", Cause.FAILED),
        (0, True, "", Cause.FAILED),  # SIGTERM from elsewhere: it left in order
        (1, False, "", Cause.FAILED),
        (3, True, "refused", Cause.FAILED),  # it was paused and lost meanwhile
        (3, False, "refused", Cause.HOPELESS),  # another model or layout
        (2, False, "config_error", Cause.HOPELESS),
        (2, False, "checkpoint_error", Cause.HOPELESS),
        (2, False, "", Cause.HOPELESS),
        (2, False, "address_in_use", Cause.FAILED),
        (2, False, "unavailable", Cause.FAILED),  # no gateway answered
        (2, True, "unavailable", Cause.FAILED),
        (2, True, "wire_error", Cause.FAILED),
    ],
)
def test_causes(code: int, was_ready: bool, failure_code: str, cause: Cause) -> None:
    assert cause_of(code, was_ready=was_ready, failure_code=failure_code) is cause


def test_moves_that_make_no_sense_are_refused() -> None:
    backing_off = supervision.ended(RUNNING, Cause.FAILED, 5, 200.0)
    given_up = supervision.ended(RUNNING, Cause.FAILED, 0, 200.0)
    for life in (backing_off, given_up):
        with pytest.raises(AssertionError, match="ended while"):
            supervision.ended(life, Cause.FAILED, 5, 201.0)
    for life in (RUNNING, backing_off, given_up):
        with pytest.raises(AssertionError, match="ready while"):
            supervision.ready(life, 201.0)
    for life in (RUNNING, given_up):
        with pytest.raises(AssertionError, match="started while"):
            supervision.started(life, 201.0)
