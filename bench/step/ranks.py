"""What a group of ranks costs beside one rank, and what agreeing on a step costs.

agree       agreeing on a step, beside gloo's all-gather of the same row
idle        one busy rank and idle ones, beside one rank: a forward that sleeps 10 ms and joins its collectives
model       a decode step of the 29M model, one rank and a group whose ranks all have work; memory of a rank
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from bench.child import Child
from bench.records import Value
from bench.rounds import in_rounds, ratios, spread
from bench.sheet import Sheet
from bench.step.flags import count
from bench.step.rank import Order
from deploy.group_folders import GroupFolders
from protocol.messages_group import GroupPlace
from runtime.process_life import thread_environment

IDLE = 1.15  # of a step of one busy rank to one alone, at most
ABOUT = "Milliseconds of a step, the median of the rounds and their range. *ratio*: the median of the rounds'."


def flags(parser: argparse.ArgumentParser) -> None:
    """What may be asked for."""
    parser.add_argument("--rounds", type=count, default=5, help="of each side (default 5)")
    parser.add_argument("--steps", type=count, default=300, help="of each round (default 300)")
    parser.add_argument("--size", type=count, default=4, help="ranks of the larger group (default 4)")


def measure(asked: argparse.Namespace, sheet: Sheet) -> None:
    """Writes three tables."""

    def compare(what: str, group_s: Callable[[], float], beside: str, beside_s: Callable[[], float]) -> float:
        by_side = in_rounds({"group": group_s, beside: beside_s}, asked.rounds)
        ratio = median(ratios(by_side["group"], by_side[beside]))
        of_group, other = (spread([time_s * 1e3 for time_s in times]) for times in by_side.values())
        cells: dict[str, Value] = {"what": what, "group": of_group, "beside it": beside, "ms": other, "ratio": ratio}
        sheet.row("Groups", cells, ABOUT)
        return ratio

    seconds, size = partial(_seconds, asked.steps), asked.size
    agree = in_rounds({"": partial(seconds, "agree", size)}, asked.rounds)
    sheet.row("Agreeing on a step", {"ranks": size, "ms": spread([time_s * 1e3 for time_s in agree[""]])})
    busy, alone = (partial(seconds, "serve", ranks) for ranks in (size, 1))
    sheet.goal(
        "a step of one busy rank / alone", compare(f"one busy rank of {size}", busy, "alone", alone), "at most", IDLE
    )
    real: dict[str, Any] = {"model": "real", "all_busy": True}
    for batch in (1, 16):
        two, one = (partial(seconds, "serve", ranks, batch=batch, **real) for ranks in (2, 1))
        compare(f"29M model, 2 ranks, {batch} requests each", two, "1 rank", one)
    for ranks in (1, 2):
        weights = group("serve", ranks, 3, **real)["weights"]
        sheet.row("Weights of one rank", {"ranks": ranks, "MB": weights / 1e6})


def _seconds(steps: int, what: str, size: int, **fields: Any) -> float:
    return group(what, size, steps, **fields)["seconds"]


def group(what: str, size: int, steps: int, **fields: Any) -> dict[str, float]:
    """What rank 0 of a group of `size` processes finds. BatonError if it ends without a word."""
    folders = GroupFolders()  # locked: a launcher beside this one removes folders that nobody holds
    ranks = []
    try:
        folder = folders.make()
        for rank in range(size):
            order = Order(what, GroupPlace("bench", 1, rank, size), folder, steps, **fields)
            command = (sys.executable, "-m", "bench.step.rank", order.to_json())
            ranks.append(Child(command, thread_environment(1)))
        figures: dict[str, float] = ranks[0].answer()
        return figures
    finally:
        for one in ranks:
            one.close()
        folders.close()
