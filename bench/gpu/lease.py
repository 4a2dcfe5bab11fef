"""`make gpu PLAN=lease`: the steps as calls of at most six minutes, for a machine that is lent for 15 minutes in all.

It runs nothing, and needs no package but Python itself: a plan is made before there is a virtual environment.
"""

import argparse
import sys
from collections.abc import Sequence

from bench.gpu.plan import CALL_S, START_S, STEPS, Step, calls, chosen

EXIT_CONFIG = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the plan. Status 2: no such step."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.lease", description=__doc__.partition("\n")[0])
    parser.add_argument("--step", default="", help=f"some of: {', '.join(step.name for step in STEPS)} (default: all)")
    asked = parser.parse_args(argv)
    try:
        steps = chosen(asked.step.replace(",", " ").split())
    except ValueError as error:
        print(f"make gpu: {error}")
        return EXIT_CONFIG
    print("\n".join(lease(steps)))
    return 0


def lease(steps: Sequence[Step]) -> list[str]:
    """A command for each call, with its steps and the seconds that they are expected to take; then the sum."""
    minutes = f"{(CALL_S - START_S) / 60:g}"
    planned, lines = calls(steps), []
    for call in planned:
        told = ", ".join(f"{step.name} {step.seconds:g}" for step in call)
        expected = START_S + sum(step.seconds for step in call)
        names = " ".join(step.name for step in call)
        lines.append(f"make gpu STEP='{names}' MINUTES={minutes}  # {expected:g} s: start {START_S:g}, {told}")
    total = len(planned) * START_S + sum(step.seconds for step in steps)
    number = f"{len(planned)} call{'s' * (len(planned) != 1)}"
    return [*lines, f"# {number}, {total:g} s together, {total / 60:.1f} minutes, without the starts of the machine"]


if __name__ == "__main__":
    sys.exit(main())
