"""`make fuzz`: bytes of clients that may end or stall the gateway, tried in a child process. Ends with 1 if some do."""

import argparse
import sys
import time
from pathlib import Path
from random import Random

from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.targets import TARGETS, outcome_of
from tests.saying import say


def main() -> int:
    """One line for each finding, and one for each target at its end."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--target", choices=["all", *TARGETS], default="all", help="what reads the bytes (default all)")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same inputs (default 0)")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"), help="where inputs go (default fuzz-found)")
    parser.add_argument("--again", type=Path, help="read this stored input once, without a child")
    args = parser.parse_args()
    targets = [*TARGETS] if args.target == "all" else [args.target]
    if args.again is not None:
        for name in targets:
            say(f"{name}: {outcome_of(name, args.again.read_bytes())}")
        return 0
    num_found = sum(_run(name, Random(args.seed), args.minutes * 60, args.found / name) for name in targets)
    return 1 if num_found else 0


def _run(target: str, random: Random, seconds: float, folder: Path) -> int:
    """Number of findings of one target."""
    end, num_found = time.monotonic() + seconds, 0
    fuzzing = Fuzzing(target, random)
    for finding in fuzzing.findings(lambda: time.monotonic() < end):
        num_found += 1
        path, what = finding.store(folder), finding.what.strip().splitlines()[-1][:200]
        say(f"{target}: {finding.kind}: {what}\nAgain: {sys.executable} -m tests.fuzz --target {target} --again {path}")
    worst_s, raw = fuzzing.worst
    say(
        f"{target}: {fuzzing.num_tried} inputs, {num_found} findings; one of at most 16 KiB took {worst_s * 1e3:.1f} "
        f"ms of CPU time at most: {raw[:60]!r}"
    )
    return num_found


if __name__ == "__main__":
    sys.exit(main())
