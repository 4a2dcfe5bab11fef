"""What is made of rounds: ratios, intervals, goals, spans."""

import pytest

from bench.memory.chats import most_at_once
from bench.memory.figures import Goal, interval, ratios, spread
from bench.memory.pool import up_to_a_new_token


def test_a_spread_is_the_median_between_its_ends() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2 (1-3)" and spread([2.5]) == "2.5" and spread([12345.0]) == "12,345"


def test_ratios_are_of_rounds() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]


def test_an_interval_narrows_with_the_number_of_values() -> None:
    few, many = [0.9, 1.0, 1.1], [0.9, 1.0, 1.1] * 40
    low, high = interval(many)
    assert interval(few) == (0.9, 1.1) and low == high == pytest.approx(1.0)


@pytest.mark.parametrize("sense, met", [("at least", (False, True, True)), ("at most", (True, True, False))])
def test_a_goal_is_met_at_its_bound(sense: str, met: tuple[bool, ...]) -> None:
    assert tuple(Goal("", value, sense, 2.0).is_met for value in (1.0, 2.0, 3.0)) == met  # type: ignore[arg-type]


def test_spans_that_touch_are_not_at_once() -> None:
    assert most_at_once([(0, 2), (1, 3), (2, 4), (9, 10)]) == 2


def test_an_answer_ends_with_a_token_that_is_new() -> None:
    ids = [5, 6, 5, 6, 7, 8]
    assert up_to_a_new_token(ids, 2) == (5, 6)
    assert up_to_a_new_token(ids, 3) == (5, 6, 5, 6, 7)
    assert up_to_a_new_token([5, 6, 6, 5], 4) == (5, 6), "none is new later"
    assert up_to_a_new_token([5, 5, 5], 2) == (5,)
