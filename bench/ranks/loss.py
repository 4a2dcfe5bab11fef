"""`python -m bench.ranks.loss`: how soon an idle rank that is killed or paused is noticed, and its group serves again.

Of two groups, one streams. A rank of it without work gets a signal, from which all seconds count:

    noticed    the gateway has no rank of that epoch any more, asked every 10 ms
    goes on    the stream has its next token
    back       all ranks of the group serve again

The last line of output is one JSON object.
"""

import argparse
import json
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from bench.memory.figures import Goal, show_goals, show_rows, spread
from loadtest.__main__ import WIDTH
from runtime.clock import MonotonicClock
from tests.e2e.baton_process import PATIENCE_S, BatonProcess

SIGNALS: Final = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
LOOK_S: Final = 0.01
TOKENS: Final = 1900  # of a stream: it goes on until the group is back
GOAL_S: Final = 2.5  # 2 s of silence, looked at four times a second


class Stream:
    """A stream that a thread reads. `at`: when each chunk came."""

    def __init__(self, baton: BatonProcess, clock: MonotonicClock) -> None:
        self.at: list[float] = []
        self._baton, self._clock, self._leaves = baton, clock, threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def leave(self) -> None:
        """Ends at the next chunk."""
        self._leaves.set()
        self._thread.join()

    def _read(self) -> None:
        for _ in self._baton.stream(prompt=[5, 6, 7], max_tokens=TOKENS, ignore_eos=True):
            self.at.append(self._clock.now())
            if self._leaves.is_set():
                return


def lose(baton: BatonProcess, number: signal.Signals) -> dict[str, float]:
    """Seconds of one loss."""
    clock = MonotonicClock()
    stream = Stream(baton, clock)
    try:
        wait_until(lambda: any(row["running"] for row in baton.workers()))
        rows = baton.workers()
        busy = next(row for row in rows if row["running"])
        group = [row for row in rows if row["place"]["group"] == busy["place"]["group"]]
        idle = next(row for row in group if row is not busy)
        lost = {row["pid"] for row in group}

        sent = clock.now()
        baton.worker(idle["id"]).send_signal(number)
        wait_until(lambda: not lost & {row["pid"] for row in baton.workers()})
        noticed = clock.now()
        wait_until(lambda: stream.at and stream.at[-1] > noticed)
        goes_on = next(at for at in stream.at if at > noticed)
        wait_until(lambda: len(baton.workers()) == len(rows))
        return {"noticed": noticed - sent, "goes on": goes_on - sent, "back": clock.now() - sent}
    finally:
        stream.leave()


def wait_until(what: Callable[[], object]) -> None:
    """Asks every 10 ms. RuntimeError when patience is over."""
    clock, pause = MonotonicClock(), threading.Event()  # which is never set
    end = clock.now() + PATIENCE_S
    while not what():
        if clock.now() > end:
            raise RuntimeError(f"it has not come to pass in {PATIENCE_S:g} s")
        pause.wait(LOOK_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints. Status 1 if a loss is noticed too late."""
    parser = argparse.ArgumentParser(prog="python -m bench.ranks.loss", description="Times the loss of an idle rank.")
    parser.add_argument("--rounds", type=int, default=5, help="of each signal (default 5)")
    parser.add_argument("--size", type=int, default=2, help="ranks of each group (default 2)")
    asked = parser.parse_args(argv)

    flags = f"--port 0 --prefill 0 --decode 0 --unified 2 --dp-size {asked.size} --enable-dp-attention"
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SIGNALS}
    with (
        tempfile.TemporaryDirectory() as folder,
        BatonProcess("serve", *flags.split(), log=Path(folder) / "log", patient=False) as baton,
    ):
        for _ in range(asked.rounds):
            for name, number in SIGNALS.items():
                found[name].append(lose(baton, number))

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    rows: list[dict[str, Any]] = [
        {"signal": name, **{what: spread([each[what] for each in times]) for what in times[0]}}
        for name, times in found.items()
    ]
    show_rows(console, f"an idle rank of {asked.size} is lost, seconds from the signal", rows, markdown=False)
    worst = max(each["noticed"] for times in found.values() for each in times)
    goals = [Goal("seconds until the slowest loss is noticed", worst, "at most", GOAL_S)]
    print(json.dumps({"bench": "ranks.loss", "times": found, "goals": show_goals(console, goals)}))
    return 0 if all(goal.is_met for goal in goals) else 1


if __name__ == "__main__":
    raise SystemExit(main())
