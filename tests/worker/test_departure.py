"""How a worker leaves: every state, and everything that may happen in it."""

import pytest

from worker.departure import Departure, State

BOUND_S = 30.0


def leaving(bound_s: float = BOUND_S) -> Departure:
    """One that has begun to leave at 100."""
    departure = Departure(bound_s)
    assert departure.look(0, 99.0, is_known=True, rests=False) is State.SERVING
    assert departure.look(1, 100.0, is_known=True, rests=False) is State.LEAVING
    return departure


def test_it_serves_until_a_signal_comes_whether_it_rests_or_is_known() -> None:
    departure = Departure(BOUND_S)
    for rests in (True, False):
        for is_known in (True, False):
            assert departure.look(0, 1e9, is_known=is_known, rests=rests) is State.SERVING


def test_it_goes_on_while_something_needs_it() -> None:
    departure = leaving()
    assert departure.look(1, 129.9, is_known=True, rests=True) is State.LEAVING, "something may be on its way to it"


@pytest.mark.parametrize("rests", [False, True])
def test_once_nothing_needs_it_it_ends_as_soon_as_it_rests(rests: bool) -> None:
    departure = leaving()
    departure.is_free = True
    found = departure.look(1, 101.0, is_known=True, rests=rests)
    assert found is (State.ENDING if rests else State.LEAVING)


def test_its_bound_ends_it() -> None:
    departure = leaving()
    assert departure.look(1, 129.9, is_known=True, rests=False) is State.LEAVING
    assert departure.look(1, 130.0, is_known=True, rests=False) is State.ENDING


def test_a_second_signal_ends_it() -> None:
    assert leaving().look(2, 100.1, is_known=True, rests=False) is State.ENDING


def test_it_ends_when_no_gateway_knows_it() -> None:
    assert leaving().look(1, 100.1, is_known=False, rests=False) is State.ENDING
    assert Departure(BOUND_S).look(1, 0.0, is_known=False, rests=False) is State.ENDING, "while it still joins"


def test_without_a_bound_it_ends_at_once() -> None:
    assert Departure(0.0).look(1, 7.0, is_known=True, rests=False) is State.ENDING


def test_a_rank_leaves_with_its_group_without_a_signal_of_its_own() -> None:
    departure = Departure(BOUND_S)
    departure.is_free = True
    assert departure.look(0, 5.0, is_known=True, rests=False) is State.LEAVING
    assert departure.look(0, 6.0, is_known=True, rests=True) is State.ENDING


def test_what_has_ended_stays_so() -> None:
    departure = leaving()
    departure.look(2, 100.1, is_known=True, rests=False)
    assert departure.look(2, 100.2, is_known=True, rests=False) is State.ENDING
