"""`python -m tests.largest [FOLDER]`: the ten largest files and classes of the product, with their lines.

A long one may hold two ideas: a reader looks whether its name says all that is in it. Nothing fails because of a size.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from runtime.installation import ROOMS

MOST_SHOWN = 10


def files_of(root: Path) -> Iterator[tuple[str, int]]:
    """Each Python file of the product, and its lines."""
    for path in (path for room in ROOMS for path in (root / room).rglob("*.py")):
        yield str(path.relative_to(root)), len(path.read_text().splitlines())


def classes_of(root: Path) -> Iterator[tuple[str, int]]:
    """Each class of the product, as PATH::NAME, and its lines from `class` to its last statement."""
    for path in (path for room in ROOMS for path in (root / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield f"{path.relative_to(root)}::{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def largest(lengths: Iterator[tuple[str, int]]) -> list[tuple[str, int]]:
    """The ten longest, the longest first, and equal ones by name."""
    return sorted(lengths, key=lambda entry: (-entry[1], entry[0]))[:MOST_SHOWN]


if __name__ == "__main__":
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    for kind, lengths in (("file", files_of(root)), ("class", classes_of(root))):
        sys.stdout.write(f"| {kind} | lines |\n|---|---:|\n")
        sys.stdout.writelines(f"| `{name}` | {length} |\n" for name, length in largest(lengths))
        sys.stdout.write("\n")
