"""`python -m bench.transfer`: how fast KV moves from one process to another, beside the machine's limits.

    prefill's process, one core  --KV-->  decode's process, another core

Sides and their limits take turns, with and without checksums. Then exposed.py measures the exposed part of a transfer.
process.py lists the sides; `make gpu STEP=ipc` has cuda_ipc. The last line of output is one JSON object.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from bench.child import Child
from bench.records import Value
from bench.rounds import turns
from bench.sheet import Printed, Sheet
from bench.transfer.blocks import BLOCKS
from bench.transfer.ends import KEYS
from bench.transfer.exposed import measure as measure_exposed
from bench.transfer.process import SIDES
from deploy.keys import GATEWAY_NAME, new
from protocol.errors import BatonError
from runtime.process_life import thread_environment

HEADLINE: Final = "8192 tokens"  # these blocks have a goal
SHARE: Final = 0.8  # of the limit, at least
QUICK_REPEATS: Final = 3
WARM_UP: Final = 2
LIMIT: Final = " limit"


class Ends:
    """Both processes. They die with this one."""

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.cores = (cores[0], cores[-1])
        self._keys = TemporaryDirectory()  # for the side that encrypts
        new(Path(self._keys.name) / "keys", [])
        keys = str(Path(self._keys.name) / "keys" / GATEWAY_NAME)
        self._children = [
            Child(
                (sys.executable, "-m", "bench.transfer.process", role, str(core)),
                {**thread_environment(1), KEYS: keys},
            )
            for role, core in zip(("prefill", "decode"), self.cores, strict=True)
        ]

    def both(self, *commands: dict[str, Any]) -> list[dict[str, Any]]:
        """Sends one command to both ends, or one to each. Returns their answers."""
        for child, command in zip(self._children, commands * (3 - len(commands)), strict=True):
            child.tell(**command)
        return [child.answer() for child in self._children]

    def open(self, side: str) -> None:
        """Opens both ends of a side and connects them."""
        there, here = (answer["address"] for answer in self.both({"do": "open", "side": side}))
        meet = {"do": "meet", "side": side}
        self.both({**meet, "address": here}, {**meet, "address": there})

    def seconds(self, side: str, check: bool) -> float:
        """The seconds of one move."""
        prefill, decode = self.both({"do": "move", "side": side, "check": check})
        both = prefill | decode
        return float(both["end"]) - float(both["start"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._children:
            child.close()
        self._keys.cleanup()


def measure(ends: Ends, name: str, sides: Sequence[str], repeat: int, sheet: Sheet) -> None:
    """Measures every side and its limit in turn, with checksums and without, and writes a line for each side."""
    blocks = BLOCKS[name]
    measured = [way for side in sides for way in (side, side + LIMIT) if way in SIDES]
    ends.both({"do": "blocks", "name": name})
    for side in measured:
        ends.open(side)

    rates: dict[tuple[str, bool], list[float]] = {}
    for side, number in turns(measured, repeat, WARM_UP):
        for check in (True, False):
            gb_s = blocks.num_bytes / ends.seconds(side, check) / 1e9
            if number >= 0:
                rates.setdefault((side, check), []).append(gb_s)

    _compare(ends, sides)
    ends.both({"do": "close"})
    for side in sides:
        cells: dict[str, Value] = {"blocks": name, "side": side}
        for words, check in (("", True), ("unchecked ", False)):
            own, limit = rates[side, check], rates.get((side + LIMIT, check))
            share = median(own) / median(limit) if limit else None
            cells |= {f"{words}GB/s": middle(own), f"{words}limit": middle(limit or []), f"{words}share": share}
            if check and share is not None and name == HEADLINE:
                sheet.goal(f"{name}, {side}: share of the limit", share, "at least", SHARE)
        sheet.row("KV from process to process", cells, f"GB/s = 1e9 bytes a second, medians of {repeat} (10-90%).")


def _compare(ends: Ends, sides: Sequence[str]) -> None:
    """Moves with each product side and checks that decode's memory equals prefill's."""
    for side in sides:
        ends.seconds(side, True)
        sent, landed = (answer["digest"] for answer in ends.both({"do": "digest"}))
        if sent != landed:
            raise BatonError(f"{side}: what has landed is not what was sent")


def middle(rates: Sequence[float]) -> str:
    """The median, and the range of the middle 80%."""
    if not rates:
        return ""
    low, *_, high = quantiles(rates, n=10, method="inclusive") if len(rates) > 1 else [*rates, *rates]
    return f"{median(rates):.2f} ({low:.2f}-{high:.2f})"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0. A transfer that goes wrong raises."""
    products = [side for side in SIDES if not side.endswith(LIMIT)]
    parser = argparse.ArgumentParser(prog="python -m bench.transfer", description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=20, help="moves of each side (default 20)")
    parser.add_argument("--only", action="append", choices=products, help="measure only this side (repeatable)")
    parser.add_argument("--blocks", action="append", choices=list(BLOCKS), help="move only these (repeatable)")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: under a minute")
    asked = parser.parse_args(argv)

    repeat, sheet = QUICK_REPEATS if asked.quick else asked.repeat, Printed("transfer")
    with Ends() as ends:
        for name in asked.blocks or BLOCKS:
            measure(ends, name, asked.only or products, repeat, sheet)
    if asked.only or asked.blocks:
        sheet.note("exposed transfer: not measured, since only some sides or blocks were asked for")
    else:
        measure_exposed(sheet, asked.quick)
    return sheet.end()


if __name__ == "__main__":
    raise SystemExit(main())
