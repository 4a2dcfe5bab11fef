"""One request's time line as a table: what happened, where, when, and a bar for the time that this took. Pure.

The bars' scale ends at the first decode step. The later steps take many times as long, so one row tells them in words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

MAX_WIDTH = 120
FIRST_DECODE = "first decode"
NOTE = "+ms and bar: since the moment before in the same process; for a process's first moment, since the row above."
_MIN_BAR = 10
_GAP = 2
_HEADINGS = ("ms", "+ms", "where", "what", "")
_STYLES = ("cyan", "magenta", "green", "yellow", "blue")


@dataclass(frozen=True)
class Moment:
    """One event of a request. `at_ms` counts from the request's arrival at the gateway."""

    name: str
    at_ms: float
    worker: str


@dataclass(frozen=True)
class Span:
    """A moment and the start of the time that led to it."""

    moment: Moment
    start_ms: float

    @property
    def ms(self) -> float:
        """The length of that time."""
        return self.moment.at_ms - self.start_ms


def read_moments(chunk: Mapping[str, Any]) -> tuple[Moment, ...]:
    """The moments of a response or chunk in order of time; empty without a time line. A repeated moment counts
    once."""
    found = chunk.get("timeline") or ()
    moments = {Moment(str(each["name"]), float(each["at_ms"]), str(each["worker"])): None for each in found}
    return tuple(sorted(moments, key=lambda moment: moment.at_ms))


def spans(moments: Sequence[Moment]) -> tuple[Span, ...]:
    """Each moment's span, from the previous moment of its process; for a process's first, from any process's."""
    latest: dict[str, float] = {}
    previous, found = 0.0, []
    for moment in moments:
        found.append(Span(moment, latest.get(moment.worker, previous)))
        previous = latest[moment.worker] = moment.at_ms
    return tuple(found)


def bar(start_ms: float, end_ms: float, total_ms: float, width: int) -> str:
    """`width` characters for [0, total_ms). Fills [start_ms, end_ms), at least one character."""
    scale = width / total_ms if total_ms > 0 else 0.0
    first = min(int(start_ms * scale), width - 1)
    last = min(max(int(end_ms * scale + 0.5), first + 1), width)
    return " " * first + "━" * (last - first) + " " * (width - last)


def draw(found: Sequence[Span], num_tokens: int, width: int) -> list[str]:
    """The last column: bars up to the first decode step, then the decode phase in words."""
    first = next((place for place, span in enumerate(found) if span.moment.name == FIRST_DECODE), len(found) - 1)
    total_ms = found[first].moment.at_ms
    drawn = [bar(span.start_ms, span.moment.at_ms, total_ms, width) for span in found[: first + 1]]
    for span in found[first + 1 :]:
        if span.moment.worker == found[first].moment.worker:
            more = max(0, num_tokens - 2)  # prefill made one token, the first decode step another
            drawn.append(f"… {more} more token{'' if more == 1 else 's'}, {span.ms:.0f} ms")
        else:
            drawn.append("…")
    return drawn


def timeline_table(moments: Sequence[Moment], num_tokens: int, width: int) -> Table:
    """The table, at most `width` and MAX_WIDTH characters wide unless its words need more. Each process has a colour.
    `num_tokens` counts the answer's tokens."""
    found = spans(moments)
    rows = [(f"{each.moment.at_ms:.1f}", f"{each.ms:.1f}", each.moment.worker, each.moment.name) for each in found]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")

    for heading in _HEADINGS:
        table.add_column(heading, no_wrap=True, justify="right" if "ms" in heading else "left")

    words = sum(max(map(len, column)) + _GAP for column in zip(_HEADINGS[:-1], *rows, strict=True))
    drawn = draw(found, num_tokens, max(_MIN_BAR, min(width, MAX_WIDTH) - words))

    styles: dict[str, str] = {}
    for (at, taken, worker, name), bars in zip(rows, drawn, strict=True):
        style = styles.setdefault(worker, _STYLES[len(styles) % len(_STYLES)])
        table.add_row(at, Text(taken, style="dim"), Text(worker, style=style), Text(name), Text(bars, style=style))
    return table
