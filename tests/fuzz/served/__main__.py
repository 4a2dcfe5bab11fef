"""`make fuzz-grammars`: requests with random, changed and public grammars on a running pair. Ends with 1 if a process
that serves dies, an answer does not follow its grammar, or a neighbour's stream stands still for longer than it may."""

import argparse
import signal
import sys
from pathlib import Path
from threading import Event

from tests.fuzz.served.campaign import Options, Totals, run
from tests.saying import say


def main() -> int:
    """One line for each finding and for each window, and a summary."""
    parser = argparse.ArgumentParser(prog="make fuzz-grammars", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long it goes on (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same requests (default 0)")
    parser.add_argument("--clients", type=int, default=4, help="requests at a time (default 4)")
    parser.add_argument("--window", type=float, default=20.0, help="seconds of a window (default 20)")
    parser.add_argument(
        "--windows", type=int, default=0, help="end after so many windows with grammars (default: never)"
    )
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first request (default 0)")
    parser.add_argument("--most", type=int, default=10**9, help="requests of a client in a window, at most")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found/grammars"), help="where findings go")
    args = parser.parse_args()
    options = Options(
        seed=args.seed,
        minutes=args.minutes,
        folder=args.found,
        num_clients=args.clients,
        window_s=args.window,
        first=args.first,
        most=args.most,
        num_windows=args.windows,
    )
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())  # the window that runs is the last one
    totals = run(options, stop)
    summary(totals)
    return 1 if totals.num_findings else 0


def summary(totals: Totals) -> None:
    """Counts by family and kind, the longest gaps, and how each process has grown."""
    for (family, kind), number in sorted(totals.counts.items()):
        say(f"{family:20} {kind:30} {number}")
    for is_calm, gaps in totals.gaps.items():
        ordered = sorted(gaps)
        middle = ordered[len(ordered) // 2] if ordered else 0.0
        name = "calm" if is_calm else "fuzzed"
        say(
            f"{len(gaps)} {name} windows: longest gap {max(gaps, default=0) * 1e3:.0f} ms, median {middle * 1e3:.0f} ms"
        )
    for growth in totals.growths:
        say(str(growth))
    number = sum(totals.counts.values())
    say(f"{number} requests, {totals.num_suspects} gaps tried again, {totals.num_findings} findings")


if __name__ == "__main__":
    sys.exit(main())
