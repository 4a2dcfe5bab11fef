"""Percentiles are values that were measured, and only those that enough values support."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.figures.distribution import Distribution, jain, number, percentile


def test_percentiles_are_nearest_ranks() -> None:
    distribution = Distribution.of(float(value) for value in range(1000, 0, -1))
    assert distribution is not None
    assert (distribution.count, distribution.least, distribution.most, distribution.mean) == (1000, 1, 1000, 500.5)
    assert (distribution.p50, distribution.p90, distribution.p95, distribution.p99, distribution.p999) == (
        500,
        900,
        950,
        990,
        999,
    )


def test_a_tail_that_only_the_maximum_supports_is_left_out() -> None:
    distribution = Distribution.of([3.0, 1.0, 2.0])
    assert distribution is not None and (distribution.p50, distribution.p90, distribution.p99) == (2.0, None, None)
    assert Distribution.of([]) is None


def test_fairness_is_one_for_equals_and_one_nth_for_a_monopoly() -> None:
    assert jain([4, 4, 4]) == pytest.approx(1)
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain([]) is jain([0]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_percentile_is_the_smallest_value_that_covers_its_share(values: list[float], share: float) -> None:
    smallest = percentile(values, share)
    assert smallest in values
    assert sum(value <= smallest for value in values) >= share * len(values) - 1e-9
    assert sum(value < smallest for value in values) < share * len(values) + 1e-9


def test_percentile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(percentile([], 0.5))


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (None, float("nan"), 0.12345, 12.345, 1234.5)] == [
        "-",
        "-",
        "0.123",
        "12.3",
        "1,234",
    ]
