"""One request's time line as a table: what happened, where, when, and a bar from the moment before. Pure.

What it does not know: which moments there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

BAR_CHARS = (10, 40)  # least and most
_GAP = 2
_HEADINGS = ("ms", "+ms", "where", "what", "")
_STYLES = ("cyan", "magenta", "green", "yellow", "blue")


@dataclass(frozen=True)
class Moment:
    """`at_ms` counts from the request's arrival at the gateway."""

    name: str
    at_ms: float
    worker: str


def read_moments(chunk: Mapping[str, Any]) -> tuple[Moment, ...]:
    """The time line that a response or chunk carries, in order of time; empty when it carries none. A moment that
    arrived by two ways counts once."""
    found = chunk.get("timeline") or ()
    moments = {Moment(str(each["name"]), float(each["at_ms"]), str(each["worker"])): None for each in found}
    return tuple(sorted(moments, key=lambda moment: moment.at_ms))


def bar(start_ms: float, end_ms: float, total_ms: float, width: int) -> str:
    """`width` characters that stand for [0, total_ms], filled from start to end, at least one character."""
    scale = width / total_ms if total_ms > 0 else 0.0
    first = min(int(start_ms * scale), width - 1)
    last = min(max(int(end_ms * scale + 0.5), first + 1), width)
    return " " * first + "━" * (last - first) + " " * (width - last)


def timeline_table(moments: Sequence[Moment], width: int) -> Table:
    """The table, at most `width` characters wide unless its words need more; each process has its colour."""
    befores = [0.0, *(moment.at_ms for moment in moments)]
    rows = [
        (f"{moment.at_ms:.1f}", f"{moment.at_ms - before:.1f}", moment.worker, moment.name)
        for before, moment in zip(befores, moments, strict=False)
    ]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for heading in _HEADINGS:
        table.add_column(heading, no_wrap=True, justify="right" if "ms" in heading else "left")
    words = sum(max(map(len, column)) + _GAP for column in zip(_HEADINGS[:-1], *rows, strict=True))
    bar_chars = max(BAR_CHARS[0], min(BAR_CHARS[1], width - words))
    styles: dict[str, str] = {}
    for row, before, moment in zip(rows, befores, moments, strict=False):
        style = styles.setdefault(moment.worker, _STYLES[len(styles) % len(_STYLES)])
        drawn = bar(before, moment.at_ms, moments[-1].at_ms, bar_chars)
        at, delta, worker, name = row
        table.add_row(at, Text(delta, style="dim"), Text(worker, style=style), Text(name), Text(drawn, style=style))
    return table
