"""One request's time line as a table: what happened, where, when, and a bar from the moment before. Pure.

What it does not know: which moments there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

BAR_CHARS = 40
_STYLES = ("cyan", "magenta", "green", "yellow", "blue")


@dataclass(frozen=True)
class Moment:
    """`at_ms` counts from the request's arrival at the gateway."""

    name: str
    at_ms: float
    worker: str


def read_moments(chunk: Mapping[str, Any]) -> tuple[Moment, ...]:
    """The time line that a response or chunk carries, in order of time; empty when it carries none."""
    found = chunk.get("timeline") or ()
    moments = [Moment(str(each["name"]), float(each["at_ms"]), str(each["worker"])) for each in found]
    return tuple(sorted(moments, key=lambda moment: moment.at_ms))


def bar(start_ms: float, end_ms: float, total_ms: float, width: int = BAR_CHARS) -> str:
    """`width` characters that stand for [0, total_ms], filled from start to end, at least one character."""
    scale = width / total_ms if total_ms > 0 else 0.0
    first = min(int(start_ms * scale), width - 1)
    last = min(max(int(end_ms * scale + 0.5), first + 1), width)
    return " " * first + "━" * (last - first) + " " * (width - last)


def timeline_table(moments: Sequence[Moment]) -> Table:
    """The table; each process has its colour."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("ms", justify="right")
    table.add_column("+ms", justify="right")
    table.add_column("where")
    table.add_column("what")
    table.add_column("")
    total = moments[-1].at_ms
    styles: dict[str, str] = {}
    before = 0.0
    for moment in moments:
        style = styles.setdefault(moment.worker, _STYLES[len(styles) % len(_STYLES)])
        table.add_row(
            f"{moment.at_ms:.1f}",
            Text(f"{moment.at_ms - before:.1f}", style="dim"),
            Text(moment.worker, style=style),
            moment.name,
            Text(bar(before, moment.at_ms, total), style=style),
        )
        before = moment.at_ms
    return table
