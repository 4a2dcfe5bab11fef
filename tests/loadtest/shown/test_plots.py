"""Plots are SVG with their points in the right places."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from loadtest.shown.plots import BOTTOM, HEIGHT, LEFT, MOST_POINTS, RIGHT, TOP, WIDTH, Line, Plot, cdf, tick


def points(svg: str) -> list[list[tuple[float, float]]]:
    matches = re.findall(r"points='([^']*)'", svg)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in matches]


def test_a_line_fills_its_plot() -> None:
    svg = Plot("a < b", "s", "ms", [Line("p50", [0, 5, 10], [0, 1, 4])]).svg()
    ElementTree.fromstring(svg)
    left, right, low, high = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM, TOP
    assert points(svg) == [[(left, low), ((left + right) / 2, low - (low - high) / 4), (right, high)]]
    assert "a &lt; b" in svg


def test_gaps_dots_and_legends() -> None:
    lines = [Line("one", [0, 1, 2], [1, float("nan"), 3]), Line("two", [0, 1], [2, 2], is_dots=True)]
    svg = Plot("t", "x", "y", lines).svg()
    ElementTree.fromstring(svg)
    assert [len(point) for point in points(svg)] == [2] and svg.count("<circle") == 2
    assert ">one<" in svg and ">two<" in svg


@pytest.mark.parametrize("xs", [[148.0, 150.0, 156.0], [0.5, 20.0, 900.0], [7.0, 7.0, 7.0]])
def test_a_logarithmic_axis_has_ticks_however_narrow_it_is(xs: list[float]) -> None:
    svg = Plot("t", "ms", "share", [cdf("x", xs)], log_x=True).svg()
    assert len(re.findall(r"text-anchor='middle'>[\d.]+<", svg)) >= 2
    [placed] = points(svg)
    assert all(earlier[0] <= later[0] for earlier, later in pairwise(placed))


def test_nothing_is_said_so() -> None:
    assert "nothing to show" in Plot("t", "x", "y", [Line("one", [], [])]).svg()


def test_a_distribution_has_a_bounded_number_of_points_and_ends_at_one() -> None:
    line = cdf("x", [float(value) for value in range(10_000)])
    assert len(line.xs) == MOST_POINTS and (line.xs[-1], line.ys[-1]) == (9999, 1)
    assert cdf("x", [3.0, 1.0]).ys == [0.5, 1.0]


def test_ticks_are_short() -> None:
    assert [tick(value) for value in (0.5, 150.0, 20_000.0, 3_000_000.0)] == ["0.5", "150", "20k", "3M"]
