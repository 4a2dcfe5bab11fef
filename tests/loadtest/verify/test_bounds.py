"""What a run may cost, and when it stops for the server's sake."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.verify.bounds import Bounds, Pace, Spent, slower


@given(st.floats(0.1, 50), st.integers(1, 16), st.lists(st.floats(0, 3), min_size=1, max_size=60))
def test_no_second_has_more_than_the_rate_and_a_burst(rate: float, together: int, pauses: list[float]) -> None:
    pace, now, sent = Pace(rate, together), 0.0, []
    for pause in pauses:
        now += pause
        sent.append(now + pace.wait_s(now))
    for index, first in enumerate(sent):
        within = sum(at_s < first + 1.0 for at_s in sent[index:])
        assert within <= together + rate + 1
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(sent))


def test_a_burst_goes_at_once_and_then_each_waits() -> None:
    pace = Pace(2.0, 4)
    assert [pace.wait_s(0.0) for _ in range(6)] == [0.0, 0.0, 0.0, 0.0, 0.5, 1.0]
    assert pace.wait_s(60.0) == 0.0


@pytest.mark.parametrize(
    "spent, seconds, reached",
    [
        (Spent(requests=299, tokens=149_999), 599, ""),
        (Spent(requests=300), 0, "300 requests"),
        (Spent(tokens=150_000), 0, "150,000 tokens"),
        (Spent(), 600, "10 minutes"),
    ],
)
def test_the_first_bound_that_is_reached(spent: Spent, seconds: float, reached: str) -> None:
    assert spent.reached(Bounds(), seconds) == reached


@pytest.mark.parametrize("ended, errors, stops", [(19, 19, False), (20, 2, False), (60, 3, False), (59, 3, True)])
def test_many_refusals_stop_a_run(ended: int, errors: int, stops: bool) -> None:
    assert bool(Spent(ended=ended, errors=errors).suffering()) == stops


def test_answers_that_begin_twice_as_late_stop_a_run() -> None:
    assert slower([0.4] * 8 + [0.9] * 8) == "its TTFT went from 0.40 s to 0.90 s"
    assert (
        not slower([0.4] * 8 + [0.7] * 8) and not slower([0.01] * 8 + [0.03] * 8) and not slower([0.4] * 8 + [9.0] * 7)
    )
    assert Spent(ttfts=[0.4] * 8 + [0.9] * 8).suffering()
