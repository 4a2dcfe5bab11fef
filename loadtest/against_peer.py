"""Compares Baton with its peer under the loads of scenarios.py, in rounds: first one, then the other, never both.

Both sides are treated alike: each is started for its turn, warmed with the same load, measured and stopped. Without a
peer, Baton is measured alone and the peer is reported as absent.
"""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.bench_model import bench_model
from loadtest.deployment import deployed
from loadtest.http_exchange import Server
from loadtest.load import run_load
from loadtest.peer import ABSENT, peer_executable, peer_running, version_of
from loadtest.report import Figures, counted, failures, figures_table, median_figures, new_table
from loadtest.scenarios import OURS, PEER, SCENARIOS, TARGETS, Scenario, Verdict, expected_s, judge, of_round, quick
from runtime.clock import Clock


@dataclass
class Comparison:
    """The figures by side and run, one entry per round."""

    scenarios: tuple[Scenario, ...]
    num_rounds: int
    peer_version: str | None = None
    is_quick: bool = False
    rounds: dict[tuple[str, str], list[Figures]] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """One verdict for each target whose runs were measured."""
        runs = {run.name for scenario in self.scenarios for run in scenario.runs}
        return [judge(target, self.rounds) for target in TARGETS if {target.over.run, target.under.run} <= runs]

    def num_errors(self) -> int:
        """Failed requests of all sides."""
        return sum(figures.num_errors for rounds in self.rounds.values() for figures in rounds)


async def compare_with_peer(
    num_rounds: int,
    is_quick: bool,
    arguments: Sequence[str],
    clock: Clock,
    console: Console,
    scenarios: tuple[Scenario, ...] = SCENARIOS,
) -> Comparison:
    """Measures the scenarios. `arguments` are passed to `baton serve`."""
    executable = peer_executable(os.environ)
    scenarios = quick(scenarios) if is_quick else scenarios
    found = Comparison(scenarios, num_rounds, await version_of(executable) if executable else None, is_quick)
    minutes = expected_s(scenarios, num_rounds, executable is not None) / 60
    console.print(f"about {minutes:.0f} minutes on two idle cores" if minutes >= 1 else "about a minute")
    console.print(f"the peer: vLLM {found.peer_version}" if executable else ABSENT)
    model = bench_model()
    for number in range(num_rounds):
        for scenario in scenarios:
            console.print(f"round {number + 1} of {num_rounds}, {scenario.name}: Baton")
            async with deployed(["--model", str(model), *arguments, *scenario.serve]) as url:
                await _measure(found, OURS, Server.at(url, ""), scenario, number, clock)

            if executable is not None:
                console.print(f"round {number + 1} of {num_rounds}, {scenario.name}: vLLM (a minute to start)")
                async with peer_running(clock, executable, model) as peer:
                    await _measure(found, PEER, peer.server, scenario, number, clock)
    return found


async def _measure(found: Comparison, side: str, server: Server, scenario: Scenario, number: int, clock: Clock) -> None:
    for run in scenario.runs:
        measured = await run_load(server, clock, of_round(run.load, number))
        found.rounds.setdefault((side, run.name), []).append(measured)


def show_comparison(found: Comparison, console: Console, markdown: bool) -> dict[str, Any]:
    """Prints the tables. Returns the same as JSON."""
    sides = [OURS, PEER] if found.peer_version else [OURS]

    for scenario in found.scenarios:
        for run in scenario.runs:
            of_sides = {side: found.rounds[side, run.name] for side in sides}
            console.print(f"\n{run.name}: {run.load.words()} (Baton: {' '.join(scenario.serve)})")
            console.print(figures_table(of_sides, {}, markdown))
            for line in failures(of_sides):
                console.print(line)

    verdicts = found.verdicts()
    console.print(f"\ntargets, medians of {counted(found.num_rounds, 'round')} (lowest to highest)")
    shown = [each for each in verdicts if {each.target.over.side, each.target.under.side} <= set(sides)]
    console.print(_targets_table(shown, markdown))
    if left_out := len(verdicts) - len(shown):
        console.print(f"{counted(left_out, 'target')} of {len(verdicts)} left out, which compare Baton with vLLM")

    if found.is_quick:
        console.print("--quick shows that it works, no more: its figures are too few for a verdict")
    if not found.peer_version:
        console.print(ABSENT)

    medians: Mapping[str, Any] = {
        run.name: {side: median_figures(found.rounds[side, run.name]) for side in sides}
        for scenario in found.scenarios
        for run in scenario.runs
    }

    return {
        "bench": "peer",
        "peer": {"name": PEER, "version": found.peer_version} if found.peer_version else None,
        "rounds": found.num_rounds,
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "runs": medians,
        "targets": [verdict.to_json() for verdict in verdicts],
    }


def _targets_table(verdicts: Sequence[Verdict], markdown: bool) -> Table:
    table = new_table(markdown, "target", "wanted", "ratio", "verdict")
    for verdict in verdicts:
        wanted = f"{verdict.target.kind} {verdict.target.bound:g}"
        ratio = "-" if verdict.ratio is None else f"{verdict.ratio:g} ({verdict.lowest:g} to {verdict.highest:g})"
        table.add_row(verdict.target.words, wanted, ratio, "no figure" if verdict.ratio is None else verdict.word)
    return table
