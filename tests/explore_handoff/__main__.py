"""`make explore-handoff`: random worlds of gateway, prefill and decode workers in which things go wrong. Ends with 1 at
the first seed in which a rule is broken, and tells its story."""

import argparse
import sys
import time
from collections import Counter

from tests.explore_handoff.exploring import explore
from tests.saying import say

PROGRESS_S = 10.0


def main() -> int:
    """Progress now and then, the story of a failure, what happened in all."""
    parser = argparse.ArgumentParser(prog="make explore-handoff", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many worlds (default 200)")
    parser.add_argument("--from", type=int, default=0, dest="start", help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--groups", action="store_true", help="only worlds with groups of ranks")
    args = parser.parse_args()
    began = told = time.monotonic()
    num_worlds = num_handoffs = 0
    happened: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for explored in explore(range(args.start, args.start + args.seeds), args.jobs, args.groups):
        num_worlds += 1
        num_handoffs += explored.num_handoffs
        happened += explored.happened
        outcomes += explored.outcomes
        if explored.broken:
            say(f"seed {explored.seed}, at {explored.broken}\nAgain: {explored.again}")
            return 1
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            say(f"{num_worlds} of {args.seeds} worlds, {num_handoffs / (told - began):.0f} handoffs a second")
    say(f"what was done: {_counts(happened)}\nhow requests ended: {_counts(outcomes)}")
    say(f"{num_handoffs} handoffs in {num_worlds} worlds: nothing wrong")
    return 0


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
