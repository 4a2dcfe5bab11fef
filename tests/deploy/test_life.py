"""The life of a unit: the whole table of its moves, then any order of starts, ends, pauses and service."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.life import (
    FORGIVEN_AFTER_S,
    MAX_WAIT_S,
    Life,
    State,
    describe_restart,
    is_of_pause,
    wait_before_restart_s,
)
from deploy.sentences import Ended
from runtime.process_life import EXIT_BROKEN, EXIT_CONFIG, EXIT_REFUSED

RUNNING = Life(State.RUNNING, since=100.0)
TRANSITIONS = {
    "ready": lambda life: life.ready(201.0),
    "ended": lambda life: life.ended(None, 201.0),
    "left": lambda life: life.left(201.0),
    "started": lambda life: life.started(201.0),
}
LEGAL = {
    State.STARTING: {"ready": State.RUNNING, "ended": State.BACKING_OFF, "left": State.LEFT},
    State.RUNNING: {"ended": State.BACKING_OFF, "left": State.LEFT},
    State.BACKING_OFF: {"started": State.STARTING},
    State.GIVEN_UP: {},
    State.LEFT: {},
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("move", TRANSITIONS)
def test_every_move_from_every_state(state: State, move: str) -> None:
    life = Life(state, since=200.0)
    if move not in LEGAL[state]:
        with pytest.raises(AssertionError, match=f"{move} while {state}"):
            TRANSITIONS[move](life)
    else:
        moved = TRANSITIONS[move](life)
        assert (moved.state, moved.since) == (LEGAL[state][move], 201.0)


def fail_again_and_again(most: int, max_restarts: int | None, ready: bool) -> list[float]:
    """Waits before each restart, until it is given up or after `most` of them, when each start takes 1 s and fails, or
    serves 1 s and fails."""
    life, now, waits = RUNNING, 100.0, list[float]()
    while len(waits) < most and (life := life.ended(max_restarts, now)).state is State.BACKING_OFF:
        waits.append(life.start_at - now)
        assert life.is_due(life.start_at) and not life.is_due(life.start_at - 0.01)
        now = life.start_at
        life = life.started(now)
        assert not life.is_due(now + 1000.0) and life.starts == 1 + len(waits)
        now += 1.0
        if ready:
            life = life.ready(now)
            now += 1.0
    assert (life.state is State.GIVEN_UP) == (len(waits) < most)
    return waits


@pytest.mark.parametrize("ready", [False, True])
def test_waits_grow_to_half_a_minute_and_stay_there(ready: bool) -> None:
    grown = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert fail_again_and_again(500, None, ready) == grown + [30.0] * 493
    assert fail_again_and_again(500, 5, ready) == grown[:5], "unless somebody sets a limit"
    assert fail_again_and_again(500, 1, ready) == [0.0]
    assert fail_again_and_again(500, 0, ready) == []


def test_no_wait_is_beyond_its_bound() -> None:
    assert [wait_before_restart_s(failures) for failures in (0, 1, 2, 8, 1_000_000)] == [0.0, 0.0, 0.5, 30.0, 30.0]


@dataclass(frozen=True)
class Happening:
    """How one start goes: `served_s` None: it ends before it serves."""

    started_s: float
    served_s: float | None
    of_pause: bool


HAPPENINGS = st.lists(
    st.builds(Happening, st.floats(0.0, 300.0), st.none() | st.floats(0.0, 3 * FORGIVEN_AFTER_S), st.booleans()),
    max_size=60,
)


@given(HAPPENINGS)
def test_without_a_limit_nothing_ends_a_life(happenings: list[Happening]) -> None:
    life, now, in_a_row = replace(RUNNING, since=0.0), 0.0, 0
    for happening in happenings:
        if life.state is State.BACKING_OFF:
            now = life.start_at
            assert life.is_due(now)
            life, now = life.started(now), now + happening.started_s
            if happening.served_s is not None:
                life, now = life.ready(now), now + happening.served_s
        is_forgiven = life.state is State.RUNNING and now - life.since >= FORGIVEN_AFTER_S
        in_a_row = (0 if is_forgiven else in_a_row) + (not happening.of_pause)
        life = life.ended(None, now, of_pause=happening.of_pause)

        wait_s = life.start_at - now
        assert life.state is State.BACKING_OFF and life.failures == in_a_row
        assert 0.0 <= wait_s <= MAX_WAIT_S + 1e-6
        assert wait_s <= 1e-6 or not (happening.of_pause or is_forgiven)


@given(HAPPENINGS, st.integers(1, 8))
def test_a_limit_counts_failures_in_a_row_and_no_pauses(happenings: list[Happening], most: int) -> None:
    """So many in a row are mended, and the next one is not."""
    free = limited = replace(RUNNING, since=0.0)
    now = 0.0
    for happening in happenings:
        if free.state is State.BACKING_OFF:
            now = free.start_at
            free, limited, now = free.started(now), limited.started(now), now + happening.started_s
            if happening.served_s is not None:
                free, limited, now = free.ready(now), limited.ready(now), now + happening.served_s
        free = free.ended(None, now, of_pause=happening.of_pause)
        limited = limited.ended(most, now, of_pause=happening.of_pause)
        assert limited.state is (State.GIVEN_UP if free.failures > most else State.BACKING_OFF)
        if limited.state is State.GIVEN_UP:
            return
        assert limited == free


HUNG = "gave no sign of life for 11 s"


@pytest.mark.parametrize(
    "ended, of_pause",
    [
        # a worker alone that was paused, comes back, and is refused
        (Ended("d", EXIT_REFUSED, "", failure_code="refused", paused=("d",)), True),
        # it lost messages, and its process was never paused
        (Ended("d", EXIT_REFUSED, "", failure_code="refused"), False),
        # its pause was so long that no gateway has answered in time
        (Ended("d", EXIT_CONFIG, "", failure_code="unavailable", paused=("d",)), True),
        (Ended("d", EXIT_CONFIG, "", failure_code="unavailable"), False),
        # the others of a group have missed a rank: it is stopped, or it says that it was paused
        (Ended("d.0", EXIT_BROKEN, "", failure_code="group_broken", paused=("d.1",)), True),
        (Ended("d.0", EXIT_REFUSED, "", failure_code="refused", paused=("d.1",)), True),
        (Ended("d.1", EXIT_BROKEN, "", failure_code="group_broken", paused=("d.1",)), True),
        (Ended("d.0", EXIT_BROKEN, "", failure_code="group_broken", paused=("d.0", "d.1")), True),
        # the rank that they have missed is dead, or silent and not stopped: it hangs
        (Ended("d.0", EXIT_BROKEN, "", failure_code="group_broken"), False),
        # what ended by a fault of its own, also soon after a pause
        (Ended("d", -9, "", paused=("d",)), False),
        (Ended("d.1", -9, "", paused=("d.0",)), False),
        (Ended("d", 1, "Traceback", paused=("d",)), False),
        (Ended("d", EXIT_BROKEN, "", failure_code="worker_broken", paused=("d",)), False),
        (Ended("d", EXIT_CONFIG, "", failure_code="config_error", paused=("d",)), False),
        # it never woke within --hang-limit
        (Ended("d", -9, "", killed_because=HUNG, paused=("d",)), False),
        (Ended("d.1", -9, "", failure_code="group_broken", killed_because=HUNG, paused=("d.1",)), False),
    ],
)
def test_which_end_follows_from_a_pause(ended: Ended, of_pause: bool) -> None:
    assert is_of_pause(ended) is of_pause


@pytest.mark.parametrize(
    "failures, max_restarts, paused, says",
    [
        (1, None, (), "it is started again at once"),
        (7, None, (), "it is started again in 16 s, restart 7 in a row"),
        (70, None, (), "it is started again in 30 s, restart 70 in a row"),
        (2, 4, (), "it is started again in 0.5 s, restart 2 of 4 in a row"),
        (5, 4, (), "it is given up after 4 restarts in a row"),
        (2, 1, (), "it is given up after 1 restart in a row"),
        (1, 0, (), "it is not started again (--max-restarts 0)"),
        (3, None, ("d.1",), "d.1 was paused, so this does not count; it is started again at once"),
        (3, 9, ("d.0", "d.1"), "d.0, d.1 were paused, so this does not count; it is started again at once"),
    ],
)
def test_what_is_said_of_an_end(failures: int, max_restarts: int | None, paused: tuple[str, ...], says: str) -> None:
    before = replace(RUNNING, failures=failures if paused else failures - 1)
    life = before.ended(max_restarts, 110.0, of_pause=bool(paused))
    assert describe_restart(life, max_restarts, paused=paused) == says
