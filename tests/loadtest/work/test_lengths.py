"""Lengths are drawn as they were asked for, and a wrong one is named."""

import random
from statistics import mean, median, stdev

import pytest

from loadtest.work.lengths import Lengths
from protocol.errors import ConfigError


def drawn(text: str, ratio: float = 0.0) -> list[int]:
    lengths = Lengths.parse(text, "--random-input-len", ratio)
    return [lengths.draw(random.Random(seed)) for seed in range(4000)]


def test_distributions_are_what_they_are_called() -> None:
    assert set(drawn("64")) == {64}
    assert (min(drawn("100", 0.5)), max(drawn("100", 0.5))) == (50, 150)
    assert set(drawn("uniform:3:5")) == {3, 4, 5}
    normal = drawn("normal:200:20")
    assert (mean(normal), stdev(normal)) == (pytest.approx(200, abs=2), pytest.approx(20, rel=0.1))
    assert median(drawn("lognormal:300:0.8")) == pytest.approx(300, rel=0.05)
    assert min(drawn("normal:2:50")) == 1


WRONG = (
    "", "x", "0", "-3", "1.5", "uniform:5:3", "uniform:5", "poisson:3:4", "normal:nan:1", "lognormal:0:1",
)  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_length_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--random-input-len: got .*, expected N, uniform:LOW:HIGH, "):
        drawn(text)


def test_a_ratio_goes_with_a_number_only() -> None:
    with pytest.raises(ConfigError, match="--random-range-ratio; expected one of the two"):
        drawn("uniform:3:5", 0.5)
