"""A run in slices of time."""

import math

import pytest

from loadtest.figures.series import MOST_SLICES, series_of
from tests.loadtest.records import Schedule, record, recorded


def test_values_belong_to_the_slice_of_their_token() -> None:
    series = series_of([record(0.0, Schedule(0.5, 0.5, 4)), recorded(1.2, [], [])], 4.0)
    assert series.at_s == [0.5, 1.5, 2.5, 3.5]
    assert series.tokens_per_s == [1, 2, 1, 0]
    assert series.ttft_p50_ms[0] == pytest.approx(500) and math.isnan(series.ttft_p50_ms[1])
    assert math.isnan(series.itl_p99_ms[0]) and series.itl_p99_ms[1] == pytest.approx(500)


def test_a_long_run_has_a_bounded_number_of_slices_and_an_empty_one_a_slice() -> None:
    assert len(series_of([record(0.0)], 9999.0).at_s) == MOST_SLICES
    assert series_of([], 0.0).tokens_per_s == [0]
