"""The longest gap of streams: which pauses count."""

import math

import pytest

from bench.gateway.crowd import longest_gap_s
from bench.side import Answer

STREAMS = [Answer(0.5, arrivals, 1, 0, 4, {}) for arrivals in ((0.5, 1.0, 3.5, 3.6), (1.5, 2.5, 2.7))]


@pytest.mark.parametrize(
    ("begun", "ended", "longest"),
    [(0.0, 9.0, 2.5), (1.0, 1.4, 0.5), (1.6, 1.7, 2.5), (4.05, 9.0, 0.1), (1.0, 2.0, 2.5)],
)
def test_pauses_that_overlap_the_time_count(begun: float, ended: float, longest: float) -> None:
    assert longest_gap_s(STREAMS, begun, ended) == pytest.approx(longest)


def test_no_pause_is_no_gap() -> None:
    assert math.isnan(longest_gap_s(STREAMS, 5.0, 6.0)) and math.isnan(longest_gap_s([], 0.0, 1.0))
