"""The same load on two deployments of Baton in turn: a pair beside a unified worker, or overlap beside serial.

    each round:  deploy one side, warm it, load it, stop it; then the other side

load.py has the load, report.py sums up.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from loadtest.deployment import deployed
from loadtest.http_exchange import Server
from loadtest.load import PlainLoad, run_load
from loadtest.report import Figures, failures, figures_table, median_figures, ratios
from loadtest.scenarios import PAIR, UNIFIED
from runtime.clock import Clock

Sides = Mapping[str, tuple[str, ...]]  # name -> arguments of baton serve; the second is the baseline
COMPARISONS: Mapping[str, Sides] = {
    "topology": {"1P1D": PAIR, "unified": UNIFIED},
    "overlap": {"overlap": (), "serial": ("--disable-overlap-schedule",)},
}


async def compare_sides(
    sides: Sides, load: PlainLoad, rounds: int, arguments: Sequence[str], clock: Clock, console: Console
) -> dict[str, list[Figures]]:
    """Figures by side. The sides alternate, so that a drift of the machine affects both."""
    found: dict[str, list[Figures]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, own in sides.items():
            console.print(f"round {number + 1} of {rounds}: {name}")
            async with deployed([*arguments, *own]) as url:
                found[name].append(await run_load(Server.at(url, ""), clock, load))
    return found


def show_sides(
    found: Mapping[str, Sequence[Figures]], load: PlainLoad, console: Console, markdown: bool
) -> dict[str, Any]:
    """Prints the table. Returns the same as JSON."""
    ours, baseline = found
    rounds = len(found[ours])
    ratio = ratios(found[ours], found[baseline])
    title = load.words() + (", 1 round" if rounds == 1 else f", medians of {rounds} rounds")
    console.print(title)
    console.print(figures_table(found, {f"{ours} / {baseline}": ratio}, markdown))
    for line in failures(found):
        console.print(line)
    medians = {name: median_figures(rounds) for name, rounds in found.items()}
    return {**medians, f"ratio_{ours}_to_{baseline}": ratio}
