"""`python -m bench.ranks`: what a group of ranks costs beside one rank, and what agreeing on a step costs.

    agree       agreeing on a step, beside gloo's all-gather of the same row
    idle        one busy rank and idle ones, beside one rank: a forward that sleeps 10 ms and joins its collectives
    model       a decode step of the 29M model, one rank and a group whose ranks all have work; memory of a rank

Sides take turns. The last line of output is one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console

from bench.memory.figures import ratios, show_rows, spread
from bench.ranks.rank import Order
from bench.turns import in_turn
from deploy.group_folders import GroupFolders
from loadtest.tied import tied
from protocol.messages_group import GroupPlace
from runtime.process_life import thread_environment

ROUNDS = 5


def group(what: str, size: int, steps: int, **fields: Any) -> dict[str, float]:
    """What rank 0 of a group of `size` processes finds. RuntimeError if it ends without a word."""
    folders = GroupFolders()  # locked: a launcher beside this one removes folders that nobody holds
    ranks = []
    try:
        folder = folders.make()
        for rank in range(size):
            order = Order(what, GroupPlace("bench", 1, rank, size), folder, steps, **fields)
            command = tied((sys.executable, "-m", "bench.ranks.rank", order.to_json()))
            environment = {**os.environ, **thread_environment(1)}
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        first = ranks[0].stdout
        assert first is not None
        line = first.readline()
        if not line:
            raise RuntimeError(f"rank 0 of {size} ended without a word: {what}")
        found: dict[str, float] = json.loads(line)
        return found
    finally:
        for each in ranks:
            each.kill()
        for each in ranks:
            each.communicate()
        folders.close()


def measure(sides: Mapping[str, Any], rounds: int) -> dict[str, list[float]]:
    """By side: what each round gave."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in in_turn(sides, number):
            found[name].append(sides[name]())
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.ranks", description="Measures groups of ranks.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each side (default {ROUNDS})")
    parser.add_argument("--steps", type=int, default=300, help="of each round (default 300)")
    parser.add_argument("--size", type=int, default=4, help="ranks of the larger group (default 4)")
    asked = parser.parse_args(argv)
    console, size, steps = Console(highlight=False), asked.size, asked.steps
    figures: dict[str, Any] = {"bench": "ranks"}

    def show(title: str, found: Mapping[str, Sequence[float]], ours: str, baseline: str) -> None:
        ratio = median(ratios(found[ours], found[baseline]))
        rows = [{"side": name, "ms": spread([each * 1e3 for each in values])} for name, values in found.items()]
        show_rows(console, title, rows, markdown=False)
        console.print(f"{ours} / {baseline}: {ratio:.3f}")
        figures[title] = {"ratio": round(ratio, 3), **{name: median(values) for name, values in found.items()}}

    show(
        f"agreeing on a step, {size} ranks",
        measure(
            {
                "agree": lambda: group("agree", size, steps)["median_s"],
                "gather": lambda: group("gather", size, steps)["median_s"],
            },
            asked.rounds,
        ),
        "agree",
        "gather",
    )
    show(
        f"one busy rank of {size}",
        measure(
            {
                "group": lambda: group("serve", size, steps)["step_s"],
                "alone": lambda: group("serve", 1, steps)["step_s"],
            },
            asked.rounds,
        ),
        "group",
        "alone",
    )
    for batch in (1, 16):
        real = {"model": "real", "all_busy": True, "batch": batch}
        sides = {
            "2 ranks": lambda real=real: group("serve", 2, steps, **real)["step_s"],
            "1 rank": lambda real=real: group("serve", 1, steps, **real)["step_s"],
        }
        show(f"the 29M model, {batch} requests on each rank", measure(sides, asked.rounds), "2 ranks", "1 rank")
    weights = [group("serve", ranks, 3, model="real", all_busy=True)["weights"] for ranks in (1, 2)]
    console.print(f"weights of one rank: alone {weights[0] / 1e6:.1f} MB, of two {weights[1] / 1e6:.1f} MB")
    print(json.dumps({**figures, "weights": weights}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
