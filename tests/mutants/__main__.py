"""`make mutants`: every sabotage must be noticed. Ends with 1 if one survives or no longer applies."""

import argparse
import sys
import tempfile
from pathlib import Path

from runtime.clock import MonotonicClock
from tests.mutants.mutants import MUTANTS
from tests.mutants.run import KILLER_S, Copy, baseline, judge_all


def main() -> int:
    """A line for each mutant, then a summary."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default 2)")
    args = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if args.only in mutant.name]
    with tempfile.TemporaryDirectory(prefix="baton-mutants-") as folder:
        copies = [Copy(Path(folder) / str(index)) for index in range(args.jobs)]
        clock = MonotonicClock()
        began = clock.now()
        if wrong := baseline(copies[0], mutants):
            sys.stdout.write(f"Without any sabotage the killers already fail:\n{wrong}\n")
            return 1
        for copy in copies:  # no killer takes longer than all of them together, unless it hangs
            copy.limit_s = max(KILLER_S, clock.now() - began)
        verdicts = judge_all(copies, mutants)
    left = [verdict for verdict in verdicts if verdict.killer is None]
    sys.stdout.write(f"{len(verdicts) - len(left)} of {len(verdicts)} mutants killed\n")
    for verdict in left:
        sys.stdout.write(f"  {verdict.line}\n    {verdict.mutant.why}\n")
    return 1 if left or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
