"""Plots as inline SVG: lines or dots over two axes. Colours come from the page's style sheet."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 34, 44
MOST_POINTS = 400
_TICKS = 5


@dataclass(frozen=True)
class Line:
    """Points with a name for the legend. Not finite ones are left out."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    is_dots: bool = False


@dataclass(frozen=True)
class Plot:
    """Lines over two axes. With `log_x`, values of 0 and below are left out."""

    title: str
    x_words: str
    y_words: str
    lines: Sequence[Line]
    log_x: bool = False

    def svg(self) -> str:
        """The plot; a sentence in its place if there is nothing to show."""
        lines = [(line, list(self._points(line))) for line in self.lines]
        points = [point for _, of_line in lines for point in of_line]
        if not points:
            return f"<p class='none'>{escape(self.title)}: nothing to show</p>"

        xs, ys = [x for x, _ in points], [y for _, y in points]
        across = _Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT, self.log_x)
        up = _Axis(min(0.0, *ys), max(ys), HEIGHT - BOTTOM, TOP)
        parts = [
            f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escape(self.title)}'>",
            f"<text class='title' x='{LEFT}' y='18'>{escape(self.title)}</text>",
            *self._axes(across, up),
        ]
        for number, (line, of_line) in enumerate(lines):
            placed = [(across.place(x), up.place(y)) for x, y in of_line]
            parts += _dots(placed, number) if line.is_dots else [_path(placed, number)]
            if len(lines) > 1:
                parts.append(_legend(line.name, number, len(lines)))
        return "\n".join([*parts, "</svg>"])

    def _points(self, line: Line) -> Iterator[tuple[float, float]]:
        for x, y in zip(line.xs, line.ys, strict=True):
            if math.isfinite(x) and math.isfinite(y) and (x > 0 or not self.log_x):
                yield x, y

    def _axes(self, across: "_Axis", up: "_Axis") -> Iterator[str]:
        low, high = HEIGHT - BOTTOM, TOP
        for value in across.ticks():
            x = across.place(value)
            yield f"<line class='grid' x1='{x:.1f}' x2='{x:.1f}' y1='{low}' y2='{high}'/>"
            yield f"<text class='tick' x='{x:.1f}' y='{low + 15}' text-anchor='middle'>{tick(value)}</text>"
        for value in up.ticks():
            y = up.place(value)
            yield f"<line class='grid' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>"
            yield f"<text class='tick' x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{tick(value)}</text>"
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield f"<text class='axis' x='{middle}' y='{HEIGHT - 8}' text-anchor='middle'>{escape(self.x_words)}</text>"
        y = (low + high) / 2
        turned = f"transform='translate(14 {y}) rotate(-90)' text-anchor='middle'"
        yield f"<text class='axis' {turned}>{escape(self.y_words)}</text>"


class _Axis:
    """Places values from `least` to `most` between two pixels."""

    def __init__(self, least: float, most: float, start: float, end: float, log: bool = False) -> None:
        self._log = log
        least, most = (math.log10(least), math.log10(most)) if log else (least, most)
        if most - least < 1e-9 * max(1.0, abs(most)):
            least, most = (least - 0.1, most + 0.1) if log else (min(0.0, least), most or 1.0)
        self._least, self._most, self._start, self._end = least, most, start, end

    def place(self, value: float) -> float:
        """The pixel of a value."""
        value = math.log10(value) if self._log else value
        return self._start + (value - self._least) / (self._most - self._least) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Round values to label: 1, 2, 5 times a power of ten."""
        if self._log:
            powers = range(math.floor(self._least), math.ceil(self._most) + 1)
            marks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
            inside = [value for value in marks if self._least <= math.log10(value) <= self._most]
            if len(inside) > 2:
                return inside[:: max(1, len(inside) // 7)]
            return _round_steps(10**self._least, 10**self._most)
        return _round_steps(self._least, self._most)


def _round_steps(least: float, most: float) -> list[float]:
    rough = (most - least) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [step * number for number in range(math.ceil(least / step), math.floor(most / step + 1e-9) + 1)]


def cdf(name: str, values: Sequence[float]) -> Line:
    """What share of the values is at most x."""
    ordered = sorted(values)
    count = len(ordered)
    places = (
        range(count)
        if count <= MOST_POINTS
        else [round(k * (count - 1) / (MOST_POINTS - 1)) for k in range(MOST_POINTS)]
    )
    return Line(name, [ordered[index] for index in places], [(index + 1) / count for index in places])


def tick(value: float) -> str:
    """A number as short as it can be."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:.4g}"


def _path(placed: Sequence[tuple[float, float]], number: int) -> str:
    if len(placed) == 1:
        return "".join(_dots(placed, number))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    return f"<polyline class='line c{number % 4}' points='{points}'/>"


def _dots(placed: Sequence[tuple[float, float]], number: int) -> list[str]:
    return [f"<circle class='dot c{number % 4}' cx='{x:.1f}' cy='{y:.1f}' r='3'/>" for x, y in placed]


def _legend(name: str, number: int, count: int) -> str:
    """In a row at the right, the first one at the left."""
    x = WIDTH - RIGHT - 8 - 74 * (count - 1 - number)
    return (
        f"<rect class='key c{number % 4}' x='{x - 62}' y='10' width='10' height='10'/>"
        f"<text class='tick' x='{x - 48}' y='19'>{escape(name)}</text>"
    )
