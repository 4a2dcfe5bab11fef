"""`make mutants`: tests must notice each mutant.

First come generated mutants of the functions that have changed since BEFORE (default: where this branch has left
origin/main). Then come the kept ones, which are written by hand. Ends with 1 if one survives or no longer applies.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from runtime.clock import MonotonicClock
from tests.mutants.changed import UNDONE, changed_functions, default_before, product, undone
from tests.mutants.generate import Function, Generated, functions
from tests.mutants.harmless import is_harmless
from tests.mutants.judging import judge_first, share_by_room, trace
from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS
from tests.mutants.run import KILLER_S, ROOT, Copy, Verdict, baseline, judge_all
from tests.mutants.sampling import sample

MOST_CHANGED = 200  # generated mutants of what has changed; of a larger change, so many are drawn
MOST_NAMED = 8  # functions that have changed
REST = """\
Now the tests of the rooms, and of what imports the files, run once without any mutant, which takes minutes.
Then they judge the other mutants.
"""


def main() -> int:
    """A line for each mutant, then a summary."""
    args = _parser().parse_args()
    kept = [mutant for mutant in MUTANTS if args.only in mutant.name] if not (args.all or args.changed) else []
    if args.only and not kept:
        sys.stdout.write(f"No mutant has {args.only!r} in its name\n")
        return 1
    generated = [] if args.only else _whole_product(args) if args.all else _changed(args)
    with tempfile.TemporaryDirectory(prefix="baton-mutants-") as folder:
        copies = [Copy(Path(folder) / str(index)) for index in range(args.jobs)]
        verdicts = _judge_generated(copies, generated, args.all) if generated else []
        if verdicts is not None and kept:
            more = _judge_kept(copies, kept)
            verdicts = None if more is None else [*verdicts, *more]
    if verdicts is None:
        return 1
    return report(verdicts, args.all)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", default="", help="kept mutants whose name contains this, and no generated ones")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default 2)")
    parser.add_argument("--before", default="", help="a commit: what has changed since then is mutated")
    parser.add_argument("--changed", action="store_true", help="generated mutants of what has changed, no kept ones")
    parser.add_argument("--all", action="store_true", help="a sample of generated mutants of the product, no kept ones")
    parser.add_argument("--number", type=int, default=300, help="mutants in the sample of --all (default 300)")
    parser.add_argument("--within", nargs="+", default=[""], help="with --all: where paths of files begin: scheduler/")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default 0)")
    return parser


def _whole_product(args: argparse.Namespace) -> list[Generated]:
    paths = [path for path in product(ROOT) if path.startswith(tuple(args.within))]
    found = [function for path in paths for function in functions(path, (ROOT / path).read_text())]
    drawn = sample(found, args.number, args.seed, is_harmless)
    sys.stdout.write(f"{len(drawn)} generated mutants of {len(found)} functions, seed {args.seed}\n")
    return drawn


def _changed(args: argparse.Namespace) -> list[Generated]:
    before = args.before or default_before(ROOT)
    found = changed_functions(ROOT, before)
    drawn = [*_undone(found, before), *sample(found, MOST_CHANGED, args.seed, is_harmless)]
    sys.stdout.write(said_of_changed([f"{function.path} {function.name}" for function in found], before, len(drawn)))
    sys.stdout.flush()
    return drawn


def said_of_changed(names: Sequence[str], before: str, num_mutants: int) -> str:
    """What a person reads while the tests of these functions run for the first time."""
    if not names:
        return (
            f"No function has changed since {before}. What is committed has changed since BEFORE=HEAD~1, or earlier.\n"
        )
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return (
        f"Changed since {before}: {', '.join(names[:MOST_NAMED])}{more}. {num_mutants} generated mutants."
        " First, tests that are named like these files judge the change as a whole.\n"
    )


def _undone(found: Sequence[Function], before: str) -> list[Generated]:
    mutants = (undone(ROOT, before, function) for function in found)
    return [mutant for mutant in mutants if mutant is not None]


def _judge_generated(copies: Sequence[Copy], mutants: Sequence[Generated], is_sample: bool) -> list[Verdict] | None:
    """None if tests of a change fail without any mutant. A sample goes on without the files of such tests."""
    noticed: list[Verdict] = []
    if not is_sample:
        noticed, wrong = judge_first(copies[0], [mutant for mutant in mutants if mutant.operator == UNDONE], _tell)
        if wrong:
            sys.stdout.write(f"Tests notice the change, for they fail with it:\n{wrong}\n")
            return None
        sys.stdout.write(REST)
        sys.stdout.flush()

    left = [mutant for mutant in mutants if all(mutant is not verdict.mutant for verdict in noticed)]
    judge, wrong = trace(copies, left) if left else (None, "")
    if wrong:
        sys.stdout.write(f"Without any mutant the tests already fail:\n{wrong}\n")
        if not is_sample:
            return None
    return noticed if judge is None else [*noticed, *judge_all(copies, left, judge.judge)]


def _tell(verdict: Verdict) -> None:
    sys.stdout.write(f"{verdict.line}\n")
    sys.stdout.flush()


def _judge_kept(copies: Sequence[Copy], mutants: Sequence[Mutant]) -> list[Verdict] | None:
    """None if the killers fail without any mutant."""
    clock = MonotonicClock()
    began = clock.now()
    if wrong := baseline(copies[0], mutants):
        sys.stdout.write(f"Without any mutant the killers already fail:\n{wrong}\n")
        return None
    for copy in copies:  # no killer takes longer than all of them together, unless it hangs
        copy.limit_s = max(KILLER_S, clock.now() - began)
    return judge_all(copies, mutants, Copy.judge)


def report(verdicts: Sequence[Verdict], is_sample: bool) -> int:
    """What a person reads at the end, and the exit status. A sample has survivors: they are to be read."""
    left = [verdict for verdict in verdicts if verdict.killer is None]
    sys.stdout.write(f"\n{len(verdicts) - len(left)} of {len(verdicts)} mutants noticed\n")
    if is_sample:
        sys.stdout.write("\n".join(share_by_room(verdicts)) + "\n")
    for verdict in left:
        sys.stdout.write(f"\n{verdict.line}\n{verdict.mutant.why}\n")
    # A change that only tidies survives as a whole: no test should tell it from what was before.
    failed = [verdict for verdict in left if not verdict.mutant.name.endswith(UNDONE)]
    return 1 if failed and not is_sample else 0


if __name__ == "__main__":
    sys.exit(main())
