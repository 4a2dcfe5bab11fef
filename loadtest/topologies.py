"""The same load, or the same sweep, on deployments of Baton on this machine, one after the other.

each --serve ARGS:  baton serve ARGS --> load or sweep --> stop
"""

import argparse
import shlex
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from loadtest.deployment import deployed
from loadtest.figures.distribution import number
from loadtest.load import cells_of
from loadtest.measure import Measured
from loadtest.search import Search, bounds
from loadtest.shown.tables import new_table

RunOne = Callable[[argparse.Namespace, str], Awaitable[tuple[int, list[Measured]]]]
_COLUMNS = (
    *("tokens/s", "cached", "good", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "worst gap p99"),
    "long prompts' TTFT p50",
)


@dataclass(frozen=True)
class Served:
    """What was measured of one deployment. `status` is the exit status of its load or sweep."""

    serve: str
    status: int
    runs: Sequence[Measured]


async def run_each(asked: argparse.Namespace, run_one: RunOne, folder: Path | None) -> list[Served]:
    """Measures each deployment, until one is ended by Ctrl-C. `folder` gets a report for each."""
    all_served: list[Served] = []
    for index, serve in enumerate(asked.serve):
        async with deployed(shlex.split(serve)) as url:
            one = copy(asked)
            one.base_url, one.serve = url, None
            one.out = "none" if folder is None else str(folder / str(index + 1))
            status, runs = await run_one(one, serve)
        all_served.append(Served(serve, status, runs))
        if status not in (0, 1):
            break
    return all_served


def topologies_table(all_served: Sequence[Served], search: Search | None, *, markdown: bool = False) -> Table:
    """A row for each deployment: the last run, or of a sweep the run with the largest good rate."""
    table = new_table(markdown, "baton serve", *(("rate", "fewer at") if search else ()), *_COLUMNS)
    for served in all_served:
        cells: list[float | None] = []
        run = served.runs[-1] if served.runs else None
        if search is not None:
            best, worst = bounds(search.points(served.runs))
            cells, run = [best, worst], best_run(served.runs, best)
        table.add_row(served.serve or "(defaults)", *map(number, [*cells, *_figures(run)]))
    return table


def best_run(runs: Sequence[Measured], rate: float | None) -> Measured | None:
    """The run with that rate."""
    return next((run for run in runs if rate is not None and getattr(run.load.arrivals, "rate", None) == rate), None)


def _figures(run: Measured | None) -> list[float | None]:
    """In the order of _COLUMNS. None where there is no figure, or the run was refused."""
    if run is None or run.refusal:
        return [None] * len(_COLUMNS)
    figures, gap = run.figures, run.figures.gap_ms
    more = {"cached": figures.cached_share, "good": figures.good_share, "worst gap p99": gap.p99 if gap else None}
    cells = cells_of(run) | more
    return [cells[name] for name in _COLUMNS]
