"""`python -m bench.commits BEFORE`: the tokens/s that this checkout serves, beside those of an earlier commit.

The earlier commit is checked out beside this one for the time of the measurement. Both use this environment. The sides
take turns with a fresh deployment each time. The last line of output is one JSON object.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.programs import run_program
from bench.rounds import compared, spread, turns
from bench.sheet import Printed
from loadtest.load import plain_load, run_deployed
from loadtest.measure import Load

HERE = Path(__file__).parents[1]


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the files of `commit`, for a while. CalledProcessError if there is no such commit."""
    with tempfile.TemporaryDirectory(prefix="baton-commit-") as folder:
        tree = Path(folder) / "tree"
        git = ("git", "-C", str(HERE), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def command_in(tree: Path) -> tuple[str, ...]:
    """`baton serve` of the files in `tree`."""
    return "env", "-C", str(tree), f"PYTHONPATH={tree}", sys.executable, "-m", "deploy", "serve", "--port", "0"


async def tokens_per_s(tree: Path, flags: Sequence[str], load: Load) -> float:
    """Served by a deployment of its own. RuntimeError if a request fails."""
    return (await run_deployed(flags, load, command_in(tree))).figures.tokens_per_s


async def compare(before: Path, rounds: int, flags: Sequence[str], load: Load, sheet: Printed) -> None:
    """Measures both sides."""
    trees = {"before": before, "now": HERE}
    speeds: dict[str, list[float]] = {side: [] for side in trees}
    for side, _ in turns(trees, rounds):
        speeds[side].append(await tokens_per_s(trees[side], flags, load))
        sheet.note(f"round {len(speeds[side])} of {rounds}, {side}: {speeds[side][-1]:,.0f} tokens/s")
    for side, speed in speeds.items():
        sheet.row("Served", {"side": side, "tokens/s": spread(speed), **compared(speed, speeds["before"])})


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and measures. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.commits", description="Serves with two commits in turns.")
    parser.add_argument("before", help="the earlier commit")
    parser.add_argument("--rounds", type=int, default=12, help="of each side (default 12)")
    parser.add_argument("--num", type=int, default=320, help="requests of a round (default 320)")
    parser.add_argument("--concurrency", type=int, default=16, help="requests at a time (default 16)")
    parser.add_argument("--out", type=int, default=96, help="output tokens (default 96)")
    parser.add_argument("serve", nargs="*", help="arguments of baton serve, after --")
    asked = parser.parse_args(argv)

    load, sheet = plain_load(asked.num, asked.concurrency, 256, asked.out, vocab=512, seed=0), Printed("commits")
    with checked_out(asked.before) as tree:
        return run_program("bench.commits", compare(tree, asked.rounds, asked.serve, load, sheet), sheet)


if __name__ == "__main__":
    raise SystemExit(main())
