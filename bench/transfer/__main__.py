"""`python -m bench.transfer`: how fast KV moves from one process to another, beside the machine's limits.

    prefill's process, one core  --KV-->  decode's process, another core

Sides and their limits take turns, with and without checksums; figures are medians and their spread. Then exposed.py
measures the exposed part of a transfer. The last line of output is one JSON object. process.py lists the sides.
"""

import argparse
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from rich.console import Console
from rich.table import Table

from bench.transfer.blocks import BLOCKS
from bench.transfer.cuda_ipc import NOT_MEASURED
from bench.transfer.cuda_ipc import measure as measure_cuda_ipc
from bench.transfer.ends import KEYS
from bench.transfer.exposed import WIDTH
from bench.transfer.exposed import measure as measure_exposed
from bench.transfer.process import SIDES
from bench.turns import in_turn
from deploy.keys import GATEWAY_NAME, new
from loadtest.tied import tied
from protocol.errors import BatonError
from runtime.process_life import thread_environment

HEADLINE: Final = "8192 tokens"  # its figures appear in the last line
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
        self._processes = [
            subprocess.Popen(
                tied((sys.executable, "-m", "bench.transfer.process", role, str(core))),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **thread_environment(1), KEYS: keys},
            )
            for role, core in zip(("prefill", "decode"), self.cores, strict=True)
        ]
        self._answers = selectors.DefaultSelector()

        for process in self._processes:
            assert process.stdout is not None, "it is a pipe"
            self._answers.register(process.stdout, selectors.EVENT_READ, process)

    def both(self, *commands: dict[str, Any]) -> list[dict[str, Any]]:
        """Sends one command to both ends, or one to each. Returns their answers."""
        for process, command in zip(self._processes, commands * (3 - len(commands)), strict=True):
            assert process.stdin is not None, "it is a pipe"
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < len(self._processes):
            for key, _ in self._answers.select():
                answering: subprocess.Popen[str] = key.data
                assert answering.stdout is not None, "it is a pipe"
                if not (line := answering.stdout.readline()):
                    raise BatonError("one end of the transfer has ended; its error is above")
                answers[answering.pid] = json.loads(line)
        return [answers[process.pid] for process in self._processes]

    def open(self, side: str) -> None:
        """Opens both ends of a side and connects them."""
        there, here = (each["address"] for each in self.both({"do": "open", "side": side}))
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
        for process in self._processes:
            process.kill()
            process.communicate()
        self._answers.close()
        self._keys.cleanup()


@dataclass
class Rates:
    """GB/s of one side with some blocks, with checksums and without."""

    checked: list[float] = field(default_factory=list)
    unchecked: list[float] = field(default_factory=list)


def measure(ends: Ends, name: str, sides: Sequence[str], repeat: int) -> dict[str, Rates]:
    """Measures every side and its limit in turn, `repeat` times."""
    blocks = BLOCKS[name]
    measured = [each for side in sides for each in (side, side + LIMIT) if each in SIDES]
    rates = {side: Rates() for side in measured}

    ends.both({"do": "blocks", "name": name})
    for side in measured:
        ends.open(side)

    for turn in range(-WARM_UP, repeat):
        for side in in_turn(measured, turn):
            for check in (True, False):
                gb_s = blocks.num_bytes / ends.seconds(side, check) / 1e9
                if turn >= 0:
                    (rates[side].checked if check else rates[side].unchecked).append(gb_s)

    _compare(ends, sides)
    ends.both({"do": "close"})
    return rates


def _compare(ends: Ends, sides: Sequence[str]) -> None:
    """Moves with each product side and checks that decode's memory equals prefill's."""
    for side in sides:
        ends.seconds(side, True)
        sent, landed = (each["digest"] for each in ends.both({"do": "digest"}))
        if sent != landed:
            raise BatonError(f"{side}: what has landed is not what was sent")


def show(console: Console, found: dict[str, dict[str, Rates]], about: str) -> None:
    """Prints medians and the range of the middle 80%."""
    columns = ("blocks", "side", "GB/s", "10-90%", "limit", "10-90%", "share", "unchecked", "its limit", "share")
    table = Table(*columns, title=about)
    for name, rates in found.items():
        for side, own in rates.items():
            if side.endswith(LIMIT):
                continue
            limit = rates.get(side + LIMIT)
            cells = [*_spread(own.checked), *_spread(limit.checked if limit else [])]
            cells += [_share(own.checked, limit.checked if limit else [])]
            cells += [*_spread(own.unchecked)[:1], *_spread(limit.unchecked if limit else [])[:1]]
            table.add_row(name, side, *cells, _share(own.unchecked, limit.unchecked if limit else []))
        table.add_section()
    console.print(table)


def _spread(rates: Sequence[float]) -> tuple[str, str]:
    if not rates:
        return "", ""
    low, *_, high = quantiles(rates, n=10, method="inclusive") if len(rates) > 1 else [*rates, *rates]
    return f"{median(rates):.2f}", f"{low:.2f}-{high:.2f}"


def _share(rates: Sequence[float], limits: Sequence[float]) -> str:
    return f"{median(rates) / median(limits):.2f}" if limits else ""


def summary(rates: dict[str, Rates], sides: Sequence[str]) -> dict[str, dict[str, float | None] | None]:
    """The part of each side in the last line; None if it was not measured."""

    def gb_s(side: str) -> float | None:
        return round(median(rates[side].checked), 3) if side in rates else None

    return {side: {"gb_s": gb_s(side), "limit_gb_s": gb_s(side + LIMIT)} if side in rates else None for side in sides}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0. A transfer that goes wrong raises."""
    products = [side for side in SIDES if not side.endswith(LIMIT)]
    parser = argparse.ArgumentParser(prog="python -m bench.transfer", description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=20, help="moves of each side (default 20)")
    parser.add_argument("--only", action="append", choices=products, help="measure only this side (repeatable)")
    parser.add_argument("--blocks", action="append", choices=list(BLOCKS), help="move only these (repeatable)")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: under a minute")
    asked = parser.parse_args(argv)

    repeat = QUICK_REPEATS if asked.quick else asked.repeat
    sides, console = asked.only or products, Console(width=None if sys.stdout.isatty() else WIDTH)

    found: dict[str, dict[str, Rates]] = {}
    others, ray = [side for side in sides if side != "ray"], [side for side in sides if side == "ray"]
    for together in filter(None, (others, ray)):
        with ExitStack() as stack:
            if together is ray:  # whose cluster would take the others' time
                from bench.transfer.ray_alone import cluster  # noqa: PLC0415 - Ray takes a second

                stack.enter_context(cluster())
            ends = stack.enter_context(Ends())
            for name in asked.blocks or BLOCKS:
                found.setdefault(name, {}).update(measure(ends, name, together, repeat))

    show(console, found, f"cores {ends.cores[0]} and {ends.cores[1]}, medians of {repeat}, GB/s = 1e9 bytes a second")
    exposed = cuda_ipc = None
    if asked.only or asked.blocks:
        console.print("exposed transfer: not measured, since only some sides or blocks were asked for")
    else:
        exposed = measure_exposed(console, asked.quick)
        if (cuda_ipc := measure_cuda_ipc(repeat)) is None:
            console.print(NOT_MEASURED)

    parts = summary(found.get(HEADLINE, {}), products)
    print(json.dumps({**parts, "cuda_ipc": cuda_ipc, "exposed": exposed}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
