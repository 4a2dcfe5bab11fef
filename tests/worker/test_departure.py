"""How a worker leaves: every state, and everything that may happen in it."""

from itertools import product

import pytest

from worker.departure import Departure, State

BOUND_S = 30.0


SERVING, LEAVING, ENDING = State


def test_it_serves_until_a_signal_comes_whether_it_rests_or_is_known() -> None:
    departure = Departure(BOUND_S)
    for rests, is_known in product((True, False), repeat=2):
        assert departure.look(0, 1e9, is_known=is_known, rests=rests) is SERVING


@pytest.mark.parametrize(
    ("signals", "now", "is_known", "rests", "is_free", "expected"),
    [
        (1, 129.9, True, True, False, LEAVING),  # something may be on its way to it
        (1, 101.0, True, False, True, LEAVING),  # nothing needs it, and it does not rest yet
        (1, 101.0, True, True, True, ENDING),
        (1, 130.0, True, False, False, ENDING),  # its bound is over
        (2, 100.1, True, False, False, ENDING),  # a second signal
        (1, 100.1, False, False, False, ENDING),  # no gateway knows it
    ],
)
def test_once_told_it_leaves_until_something_ends_it_and_then_stays_so(
    signals: int, now: float, is_known: bool, rests: bool, is_free: bool, expected: State
) -> None:
    departure = Departure(BOUND_S)
    assert departure.look(1, 100.0, is_known=True, rests=False) is LEAVING
    departure.is_free = is_free
    assert departure.look(signals, now, is_known=is_known, rests=rests) is expected
    assert expected is LEAVING or departure.look(1, 100.2, is_known=True, rests=False) is ENDING


@pytest.mark.parametrize(("bound_s", "is_known"), [(BOUND_S, False), (0.0, True)])
def test_while_it_still_joins_or_without_a_bound_it_ends_at_once(bound_s: float, is_known: bool) -> None:
    assert Departure(bound_s).look(1, 7.0, is_known=is_known, rests=False) is ENDING


def test_a_rank_leaves_with_its_group_without_a_signal_of_its_own() -> None:
    departure = Departure(BOUND_S)
    departure.is_free = True
    assert departure.look(0, 5.0, is_known=True, rests=False) is LEAVING
    assert departure.look(0, 6.0, is_known=True, rests=True) is ENDING
