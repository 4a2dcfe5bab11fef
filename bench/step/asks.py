"""What each thing that a request may ask for costs, beside greedy requests: CPU time of one thread.

One worker decodes a batch of greedy requests, one decodes 1 of a kind beside greedy ones, one decodes a batch of the
kind. kinds.py lists the kinds. With --before, greedy requests of this checkout are measured beside those of an earlier
commit instead. Figures are CPU time, so other processes disturb them little.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from bench.child import Child
from bench.commits import HERE, checked_out
from bench.records import Value
from bench.rounds import compared, in_rounds, interval
from bench.sheet import Sheet
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
    if not asked.before:
        for kind in asked.kinds:
            asking = {BASE: 0, "1": 1, f"all {asked.batch}": asked.batch}
            _compare(asked, sheet, kind, {name: (HERE, kind, num) for name, num in asking.items()})
        return

    with ExitStack() as open_:
        trees = {commit: open_.enter_context(_with_bench(commit)) for commit in (asked.before, asked.after) if commit}
        trees |= {} if asked.after else {"this checkout": HERE}
        _compare(asked, sheet, "greedy", {name: (tree, GREEDY.name, 0) for name, tree in trees.items()})


def _compare(asked: argparse.Namespace, sheet: Sheet, kind: str, sides: Mapping[str, tuple[Path, str, int]]) -> None:
    """A line for each side: a checkout, a kind, and how many requests are of the kind."""
    with ExitStack() as open_:
        sizes = (asked.context, asked.steps, asked.rounds + 1)
        running = {
            name: open_.enter_context(side(tree, model_of(asked), own, asked.batch, num, *sizes))
            for name, (tree, own, num) in sides.items()
        }
        times = in_rounds(running, asked.rounds, warm_up=1)
    base = next(iter(times.values()))
    for name, time_s in times.items():
        added = [mine - other for mine, other in zip(time_s, base, strict=True)]
        low, high = interval(added)
        cells: dict[str, Value] = {"kind": kind, "asking": name, "us": median(time_s), "added": median(added)}
        sheet.row("A step", cells | {"from, to": f"{low:,.0f}, {high:,.0f}"} | compared(time_s, base), ABOUT)


@contextmanager
def side(tree: Path, *arguments: object) -> Iterator[Callable[[], float]]:
    """Starts `asks_side.py` for the files in `tree`, and ends it. Each call is a round: microseconds of a step."""
    variables = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = (sys.executable, "-P", str(tree / "bench/step/asks_side.py"), *map(str, arguments))
    child = Child(command, variables, str(tree))
    try:
        yield lambda: float(child.ask())
    finally:
        child.close()


@contextmanager
def _with_bench(commit: str) -> Iterator[Path]:
    """A checkout of an earlier commit, with this one's programs that measure."""
    with checked_out(commit) as tree:
        shutil.rmtree(tree / "bench")
        shutil.copytree(HERE / "bench", tree / "bench")
        yield tree
