"""`make explore`: random workloads under every strategy. Ends with 1 at the first schedule that goes wrong."""

import argparse
import sys
import time

from tests.doubles.strategies import Strategy
from tests.explore.exploring import STRATEGIES, explore
from tests.saying import say

PROGRESS_S = 10.0


def main() -> int:
    """Progress now and then, a failure with its trace, one line of summary."""
    parser = argparse.ArgumentParser(prog="make explore", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many workloads (default 200)")
    parser.add_argument("--from", type=int, default=0, dest="start", help="the first seed (default 0)")
    parser.add_argument("--strategies", default="", help="names with commas between (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--detect", action="store_true", help="under the race detector, several times slower")
    parser.add_argument("--groups", action="store_true", help="only workloads with groups of ranks")
    args = parser.parse_args()
    strategies = tuple(Strategy(name) for name in args.strategies.split(",")) if args.strategies else STRATEGIES
    began = told = time.monotonic()
    num_done = 0
    seeds = range(args.start, args.start + args.seeds)
    for failure in explore(seeds, strategies, args.jobs, args.detect, args.groups):
        num_done += 1
        if failure is not None:
            say(f"seed {failure.seed}, strategy {failure.strategy}: {failure.text}\nAgain: {failure.again}")
            return 1
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            per_s = num_done * len(strategies) / (told - began)
            say(f"{num_done} of {args.seeds} seeds, {num_done * len(strategies)} schedules, {per_s:.0f} a second")
    say(f"{num_done * len(strategies)} schedules of {num_done} seeds: nothing wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
