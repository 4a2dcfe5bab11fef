"""`python -m bench.asks`: what each thing that a request may ask for costs, beside greedy requests.

One worker decodes 16 greedy requests, one decodes 1 of a kind and 15 greedy ones, one decodes 16 of the kind, and they
take turns. bench/overlap/kinds.py lists the kinds. With --before, greedy requests of this checkout are measured beside
those of an earlier commit instead. Figures are CPU time of one thread, so other processes disturb them little. The last
line of output is one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console

from bench.asks import steps
from bench.commits import HERE, checked_out
from bench.memory.figures import interval, show_rows
from bench.overlap.kinds import GREEDY, KINDS
from bench.turns import in_turn
from loadtest.bench_model import bench_model

SHARE: Final = 0.95  # of the intervals
Times = Mapping[str, Sequence[float]]  # microseconds of a step by side, round by round


class Side:
    """A worker in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._line()  # "ready"

    def round(self) -> float:
        """Microseconds of CPU time of a step."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"a measured worker has ended with status {self._process.wait()}; see its last lines")
        return line


@contextmanager
def side(tree: Path, *arguments: object) -> Iterator[Side]:
    """Starts `steps.py` for the files in `tree`, and ends it."""
    variables = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", steps.__file__, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=variables, cwd=tree, stdin=pipe, stdout=pipe, text=True) as process:
        yield Side(process)
        process.communicate()


def in_rounds(sides: Mapping[str, Side], rounds: int) -> Times:
    """Lets the sides take turns. A round of each comes first that does not count."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-1, rounds):
        for name in in_turn(sides, turn):
            found = sides[name].round()
            if turn >= 0:
                times[name].append(found)
    return times


def added(times: Times, name: str, base: str) -> dict[str, Any]:
    """What `name` takes more than `base`, round by round."""
    more_us = [mine - other for mine, other in zip(times[name], times[base], strict=True)]
    share = [mine / other for mine, other in zip(times[name], times[base], strict=True)]
    return {
        "us": round(median(times[name]), 1),
        "added_us": round(median(more_us), 1),
        "added_us_interval": [round(bound, 1) for bound in interval(more_us, SHARE)],
        "ratio": round(median(share), 4),
        "ratio_interval": [round(bound, 4) for bound in interval(share, SHARE)],
    }


def row(name: str, found: Mapping[str, Any]) -> dict[str, str]:
    """A row of the table."""
    low_us, high_us = found["added_us_interval"]
    low, high = found["ratio_interval"]
    return {
        "side": name,
        "CPU us a step": f"{found['us']:,.0f}",
        "added us": f"{found['added_us']:,.0f} ({low_us:,.0f} to {high_us:,.0f})",
        "ratio": f"{found['ratio']:.3f} ({low:.3f} to {high:.3f})",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0."""
    kinds = [kind.name for kind in KINDS if kind is not GREEDY and not kind.joins]
    parser = argparse.ArgumentParser(prog="python -m bench.asks", description=__doc__.partition("\n")[0])
    parser.add_argument("--before", help="an earlier commit: measure greedy requests of both instead")
    parser.add_argument("--after", help="with --before: the later commit (default: this checkout as it is)")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, help="what to measure (default: all)")
    parser.add_argument("--model", default="", help="checkpoint folder (default: 29M parameters, Qwen3's shape)")
    parser.add_argument("--batch", type=int, default=16, help="requests (default 16)")
    parser.add_argument("--context", type=int, default=256, help="prompt tokens (default 256)")
    parser.add_argument("--steps", type=int, default=20, help="decode steps of a round (default 20)")
    parser.add_argument("--rounds", type=int, default=21, help="rounds of each side, in turn (default 21)")
    parser.add_argument("--markdown", action="store_true", help="print a table that can be pasted into a page")
    asked = parser.parse_args(argv)
    if asked.after and not asked.before:
        parser.error("--after needs --before")

    console, model = Console(width=140, highlight=False), str(Path(asked.model or bench_model()).resolve())
    sizes = (asked.context, asked.steps, asked.rounds + 1)
    found: dict[str, dict[str, Any]] = {}
    if asked.before:
        with ExitStack() as open_:
            trees = {"before": open_.enter_context(checked_out(asked.before)), "now": HERE}
            if asked.after:
                trees["now"] = open_.enter_context(checked_out(asked.after))
            arguments = (model, GREEDY.name, asked.batch, 0, *sizes)
            sides = {name: open_.enter_context(side(tree, *arguments)) for name, tree in trees.items()}
            times = in_rounds(sides, asked.rounds)
        found = {name: added(times, name, "before") for name in trees}

    for kind in () if asked.before else asked.kinds:
        with ExitStack() as open_:
            asking = {"none": 0, "1": 1, str(asked.batch): asked.batch}
            sides = {
                name: open_.enter_context(side(HERE, model, kind, asked.batch, num, *sizes))
                for name, num in asking.items()
            }
            times = in_rounds(sides, asked.rounds)
        found |= {f"{kind}, {name} of {asked.batch}": added(times, name, "none") for name in asking if name != "none"}
        found.setdefault(GREEDY.name, added(times, "none", "none"))

    title = f"a decode step of {asked.batch} requests; medians of {asked.rounds} rounds, 95% intervals of the medians"
    show_rows(console, title, [row(name, each) for name, each in found.items()], asked.markdown)
    print(json.dumps({"bench": "asks", "sides": found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
