"""Sides take turns, and what is made of rounds."""

import pytest

from bench.rounds import compared, in_rounds, interval, ratios, spread, turns


def test_each_side_begins_as_often() -> None:
    """Rounds before the first one warm up."""
    order = ["".join(f"{side}{number}" for side, number in turns(sides, 3, warm_up=1)) for sides in ("ab", "cde")]
    assert order == ["b-1a-1a0b0b1a1a2b2", "e-1d-1c-1c0d0e0e1d1c1c2d2e2"]


def test_rounds_that_warm_up_run_and_do_not_count() -> None:
    said: list[str] = []

    def side(name: str) -> int:
        said.append(name)
        return len(said)

    by_side = in_rounds({"a": lambda: side("a"), "b": lambda: side("b")}, 2, warm_up=1)
    assert said == ["b", "a", "a", "b", "b", "a"] and by_side == {"a": [3, 6], "b": [4, 5]}


def test_a_spread_is_the_median_between_its_ends() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2 (1-3)" and spread([2.5]) == "2.5" and spread([12345.0]) == "12,345"


def test_ratios_are_of_rounds() -> None:
    """A machine that is twice as slow in one round changes nothing."""
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert compared([110.0, 220.0, 110.0], [100.0, 200.0, 100.0]) == {"ratio": 1.1, "95% interval": "1.100 to 1.100"}


def test_an_interval_narrows_with_the_number_of_values() -> None:
    few, many = [0.9, 1.0, 1.1], [0.9, 1.0, 1.1] * 40
    low, high = interval(many)
    assert interval(few) == (0.9, 1.1) and low == high == pytest.approx(1.0)
