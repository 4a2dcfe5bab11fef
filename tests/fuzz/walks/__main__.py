"""`make fuzz-schemas`: random JSON schemas, and random answers through the masks that workers use. Ends with 1 if an
answer cannot go on or is not valid, if a refusal gives a reason that is not true, or if a child dies."""

import argparse
import signal
import sys
from pathlib import Path
from threading import Event

from tests.fuzz.fuzzing import Child
from tests.fuzz.walks.campaign import Options, run
from tests.fuzz.walks.kinds import KINDS
from tests.saying import say


def main() -> int:
    """One line for each finding, and a table."""
    parser = argparse.ArgumentParser(prog="make fuzz-schemas", description=__doc__)
    parser.add_argument("--schemas", type=int, default=2000, help="how many (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same schemas (default 0)")
    parser.add_argument(
        "--kind", choices=list(KINDS), default="any", help="which: names and numbers are kinds of their own"
    )
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first schema (default 0)")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found/schemas"), help="where findings go")
    args = parser.parse_args()
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())  # the table tells what was tried until then
    child = Child([sys.executable, "-m", "tests.fuzz.walks.child", args.kind, str(args.seed)])
    try:
        options = Options(args.kind, args.seed, args.first, args.schemas, args.found)
        totals = run(options, lambda number: child.read(str(number).encode()), say, stop)
    finally:
        child.close()
    for line in totals.table():
        say(line)
    return 1 if totals.found.total() else 0


if __name__ == "__main__":
    sys.exit(main())
