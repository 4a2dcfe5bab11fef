"""Arrivals have the rate, the spread and the shape that was asked for, and a seed repeats them."""

from collections.abc import Iterator
from itertools import islice, pairwise
from statistics import mean, stdev

import pytest

from loadtest.work.arrivals import AtOnce, Gamma, Ramp, Replay


def first(moments: Iterator[float], count: int) -> list[float]:
    return list(islice(moments, count))


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_their_mean_and_spread(burstiness: float) -> None:
    moments = first(Gamma(10.0, burstiness).moments(3), 20_001)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert moments[0] == 0.0 and min(gaps) >= 0
    assert mean(gaps) == pytest.approx(0.1, rel=0.05)
    assert stdev(gaps) / mean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_a_seed_gives_one_sequence() -> None:
    pattern = Gamma(5.0)
    assert first(pattern.moments(1), 9) == first(pattern.moments(1), 9) != first(pattern.moments(2), 9)


@pytest.mark.parametrize(("strategy", "in_ramp"), [("linear", 60.0), ("exponential", 40.0)])
def test_a_ramp_reaches_its_end_and_stays(strategy: str, in_ramp: float) -> None:
    """An even process (large shape) makes the integral of the rate visible."""
    ends = {"linear": (2.0, 10.0), "exponential": (2.0, 2.0 * 2.718281828459045)}[strategy]
    length = {"linear": 10.0, "exponential": in_ramp / (ends[1] - ends[0])}[strategy]
    pattern = Ramp(*ends, length, strategy, 1e6)  # type: ignore[arg-type]
    moments = first(pattern.moments(0), 200)
    assert sum(moment < length for moment in moments) == pytest.approx(in_ramp, abs=1.5)
    assert moments[150] - moments[140] == pytest.approx(10 / ends[1], rel=0.02)
    assert moments[1] == pytest.approx(1 / ends[0], rel=0.2)


def test_a_flat_ramp_is_a_rate() -> None:
    flat, plain = Ramp(4.0, 4.0, 9.0).moments(5), Gamma(4.0).moments(5)
    assert first(flat, 50) == pytest.approx(first(plain, 50))


def test_a_replay_starts_at_once_and_runs_at_its_scale() -> None:
    assert list(Replay([2.0, 3.0, 7.0], 2.0).moments(0)) == [0.0, 0.5, 2.5]
    assert first(AtOnce().moments(0), 2) == [0.0, 0.0]
