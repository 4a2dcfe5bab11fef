"""`python -m tests.measured`: names tables of docs/measurements.md whose sources have changed since they were taken.

Above each table a comment names the commit that brought its figures, and the paths that they depend on. It is a list of
what may be taken again, and no failure.

    <!-- at 1a2b3c4: model/ scheduler/planning/trials.py -->      without paths: a comparison that stays as it is
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/measurements.md"
DECLARED = re.compile(r"<!-- at (?P<commit>[0-9a-f]{7,40}):(?P<paths>[^>]*) -->")


@dataclass(frozen=True)
class Table:
    """One table of the page. `commit` is empty if no comment declares it."""

    line: int  # of its header, from 1
    heading: str
    commit: str
    paths: tuple[str, ...]


def tables_of(text: str) -> list[Table]:
    """The tables of a page."""
    lines, heading, found = text.splitlines(), "", list[Table]()
    for at, line in enumerate(lines):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|---"):
            continue
        declared = DECLARED.fullmatch(lines[at - 2]) if at > 1 else None
        commit, paths = (declared["commit"], declared["paths"]) if declared else ("", "")
        found.append(Table(at, heading, commit, tuple(paths.split())))
    return found


def changed(table: Table, root: Path) -> int | None:
    """Commits since then that have changed the table's paths; None: git does not know that commit here."""
    if not table.paths:
        return 0
    command = (
        "git",
        "-C",
        str(root),
        "rev-list",
        "--count",
        "--no-merges",
        f"{table.commit}..HEAD",
        "--",
        *table.paths,
    )
    counted = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(counted.stdout) if counted.returncode == 0 else None


def main() -> int:
    """Prints a line for each heading with such tables, those with most changes first. The exit status is 0."""
    counts = [(changed(table, ROOT) or 0, table) for table in tables_of((ROOT / PAGE).read_text())]
    older = sorted([pair for pair in counts if pair[0]], key=lambda pair: -pair[0])
    lines = [f"{PAGE}: {len(older)} of {len(counts)} tables are older than what they measure"] if older else []
    for heading in dict.fromkeys(table.heading for _, table in older):
        count, table = next(pair for pair in older if pair[1].heading == heading)
        lines.append(f"  {heading}: {count} commits since {table.commit} in {' '.join(table.paths)}")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
