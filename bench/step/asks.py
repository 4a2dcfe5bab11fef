"""What each thing that a request may ask for costs, beside greedy requests: CPU time of one thread.

One worker decodes a batch of greedy requests, one decodes 1 of a kind beside greedy ones, one decodes a batch of the
kind. kinds.py lists the kinds. With --before, greedy requests of this checkout are measured beside those of an earlier
commit instead. Figures are CPU time, so other processes disturb them little.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from bench.commits import HERE, checked_out
from bench.records import Value
from bench.rounds import compared, in_rounds, interval
from bench.sheet import Sheet
from bench.step import asks_side
from bench.step.flags import add_plan, count, model_of
from bench.step.kinds import GREEDY, KINDS

BASE = "none"
ABOUT = "CPU microseconds of a step. *added*, *ratio*: beside the first line, round by round, with 95% intervals."


def flags(parser: argparse.ArgumentParser) -> None:
    """What may be asked for."""
    kinds = [kind.name for kind in KINDS if kind is not GREEDY and not kind.joins]
    add_plan(parser, context=256, steps=20, rounds=21)
    parser.add_argument("--batch", type=count, default=16, help="requests (default 16)")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, help="what to measure (default: all)")
    parser.set_defaults(refuse=parser.error)
    parser.add_argument("--before", help="an earlier commit: measure greedy requests of both instead")
    parser.add_argument("--after", default="", help="with --before: the later commit (default: this checkout as it is)")


def measure(asked: argparse.Namespace, sheet: Sheet) -> None:
    """Writes a table for each kind, or one for both commits."""
    if asked.after and not asked.before:
        asked.refuse("--after needs --before")
    sizes = (asked.context, asked.steps, asked.rounds + 1)
    if asked.before:
        with ExitStack() as open_:
            trees = {asked.before: open_.enter_context(_with_bench(asked.before)), "this checkout": HERE}
            if asked.after:
                trees = {asked.before: trees[asked.before], asked.after: open_.enter_context(_with_bench(asked.after))}
            arguments = (model_of(asked), GREEDY.name, asked.batch, 0, *sizes)
            sides = {name: open_.enter_context(side(tree, *arguments)) for name, tree in trees.items()}
            _rows(sheet, "greedy", sides, asked.rounds)
        return

    for kind in asked.kinds:
        with ExitStack() as open_:
            asking = {BASE: 0, "1": 1, f"all {asked.batch}": asked.batch}
            sides = {
                name: open_.enter_context(side(HERE, model_of(asked), kind, asked.batch, num, *sizes))
                for name, num in asking.items()
            }
            _rows(sheet, kind, sides, asked.rounds)


def _rows(sheet: Sheet, kind: str, sides: "Mapping[str, Side]", rounds: int) -> None:
    times = in_rounds({name: partial(each.round) for name, each in sides.items()}, rounds, warm_up=1)
    base = next(iter(times.values()))
    for name, found in times.items():
        added = [mine - other for mine, other in zip(found, base, strict=True)]
        low, high = interval(added)
        cells: dict[str, Value] = {"kind": kind, "asking": name, "us": median(found), "added": median(added)}
        sheet.row("A step", cells | {"from, to": f"{low:,.0f}, {high:,.0f}"} | compared(found, base), ABOUT)


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
    """Starts `asks_side.py` for the files in `tree`, and ends it."""
    variables = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", asks_side.__file__, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=variables, cwd=tree, stdin=pipe, stdout=pipe, text=True) as process:
        yield Side(process)
        process.communicate()


@contextmanager
def _with_bench(commit: str) -> Iterator[Path]:
    """A checkout of an earlier commit, with this one's programs that measure."""
    with checked_out(commit) as tree:
        shutil.rmtree(tree / "bench")
        shutil.copytree(HERE / "bench", tree / "bench")
        yield tree
