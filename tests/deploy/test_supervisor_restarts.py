import pytest

from deploy.sentences import Ended
from deploy.supervisor import Life, State, is_hopeless, wait_before_restart_s
from runtime.process_life import EXIT_REFUSED

RUNNING = Life(State.RUNNING, since=100.0)


def fail_again_and_again(life: Life, max_restarts: int, ready: bool, hopeless: bool = False) -> list[float]:
    """Waits before each restart until it is given up, when each start takes 1 s and fails, or serves 1 s and fails."""
    now, waits = 100.0, []
    while (life := life.ended(max_restarts, now, hopeless=hopeless)).state is State.BACKING_OFF:
        waits.append(life.start_at - now)
        assert life.is_due(life.start_at) and not life.is_due(life.start_at - 0.01)
        now = life.start_at
        life = life.started(now)
        assert life.state is State.STARTING and not life.is_due(now + 1000.0)
        now += 1.0
        if ready:
            life = life.ready(now)
            now += 1.0
    assert life.state is State.GIVEN_UP and not life.is_due(now + 1000.0)
    assert life.starts == 1 + len(waits)
    return waits


@pytest.mark.parametrize("ready", [False, True])
def test_at_once_then_longer_and_longer_then_given_up(ready: bool) -> None:
    assert fail_again_and_again(RUNNING, 5, ready) == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert fail_again_and_again(RUNNING, 1, ready) == [0.0]
    assert fail_again_and_again(RUNNING, 9, ready)[-3:] == [16.0, 30.0, 30.0]


def test_no_wait_is_beyond_its_bound() -> None:
    assert [wait_before_restart_s(failures) for failures in (0, 1, 2, 8, 1_000_000)] == [0.0, 0.0, 0.5, 30.0, 30.0]


@pytest.mark.parametrize("hopeless", [False, True])
def test_nothing_is_started_again_where_that_is_not_wanted(hopeless: bool) -> None:
    assert RUNNING.ended(0, 200.0, hopeless=hopeless).state is State.GIVEN_UP


def test_what_served_well_begins_anew() -> None:
    worn = Life(State.RUNNING, since=100.0, failures=5, starts=6)
    assert worn.ended(5, 159.9).state is State.GIVEN_UP
    life = worn.ended(5, 160.0)
    assert (life.state, life.failures, life.start_at) == (State.BACKING_OFF, 1, 160.0)


def test_a_long_start_forgives_nothing() -> None:
    starting = Life(State.STARTING, since=100.0, failures=5)
    assert starting.ended(5, 500.0).state is State.GIVEN_UP


def test_who_is_lost_soon_after_every_start_is_counted_and_given_up() -> None:
    hopeless = is_hopeless(Ended("x", EXIT_REFUSED, "", failure_code="refused", was_ready=True))
    assert fail_again_and_again(RUNNING, 5, ready=True, hopeless=hopeless) == [0.0, 0.5, 1.0, 2.0, 4.0]
    served_long = Life(State.RUNNING, since=100.0, failures=5)
    life = served_long.ended(5, 200.0, hopeless=hopeless)
    assert (life.state, life.failures, life.start_at) == (State.BACKING_OFF, 1, 200.0)


def test_what_is_hopeless_is_given_up_at_once() -> None:
    starting = Life(State.STARTING, since=100.0)
    assert starting.ended(5, 101.0, hopeless=True).state is State.GIVEN_UP


@pytest.mark.parametrize(
    "code, was_ready, failure_code, hopeless",
    [
        (-9, True, "", False),
        (-9, False, "", False),
        (1, False, "", False),
        (3, True, "refused", False),  # it was paused and lost meanwhile
        (3, False, "refused", True),  # another model or layout
        (2, False, "config_error", True),
        (2, False, "checkpoint_error", True),
        (2, False, "", True),
        (2, False, "address_in_use", False),
        (2, False, "unavailable", False),  # no gateway answered
        (4, False, "group_broken", False),  # another rank was lost or late
        (2, True, "unavailable", False),
        (2, True, "wire_error", False),
    ],
)
def test_what_is_hopeless(code: int, was_ready: bool, failure_code: str, hopeless: bool) -> None:
    assert is_hopeless(Ended("x", code, "", failure_code=failure_code, was_ready=was_ready)) is hopeless


def test_what_was_told_to_end_stays_so() -> None:
    for life in (RUNNING, Life(State.STARTING, since=100.0)):
        left = life.left(200.0)
        assert left.state is State.LEFT and not left.is_due(1e9)


def test_moves_that_make_no_sense_are_refused() -> None:
    backing_off = RUNNING.ended(5, 200.0)
    given_up, left = RUNNING.ended(0, 200.0), RUNNING.left(200.0)
    for life in (backing_off, given_up, left):
        with pytest.raises(AssertionError, match="ended while"):
            life.ended(5, 201.0)
        with pytest.raises(AssertionError, match="left while"):
            life.left(201.0)
    for life in (RUNNING, backing_off, given_up, left):
        with pytest.raises(AssertionError, match="ready while"):
            life.ready(201.0)
    for life in (RUNNING, given_up, left):
        with pytest.raises(AssertionError, match="started while"):
            life.started(201.0)
