"""Which functions of the product have changed since a commit. What is not committed counts, and so do new files."""

import ast
import re
import subprocess
from pathlib import Path

from tests.mutants.generate import Function, Generated, functions

ROOMS = tuple("decode deploy gateway model prefill protocol runtime scheduler transfer unified worker".split())


def product(root: Path) -> list[str]:
    """The Python files of the product, also those that git does not know yet."""
    listed = _git(root, "ls-files", "--cached", "--others", "--exclude-standard", *(f"{room}/*.py" for room in ROOMS))
    return sorted({name for name in listed.splitlines() if (root / name).is_file()})


def default_before(root: Path) -> str:
    """Where this branch has left `origin/main`; without one, the commit before the newest."""
    try:
        return _git(root, "merge-base", "HEAD", "origin/main").strip()
    except subprocess.CalledProcessError:
        return _git(root, "rev-parse", "HEAD~1").strip()


def changed_functions(root: Path, before: str) -> list[Function]:
    """Functions of the product with a line that is not as it was in the commit `before`."""
    new = set(_git(root, "ls-files", "--others", "--exclude-standard").splitlines())
    found = []
    for path in product(root):
        source = (root / path).read_text()
        lines = set(range(1, source.count("\n") + 2)) if path in new else _changed_lines(root, before, path)
        found += [function for function in functions(path, source) if lines & set(function.lines)]
    return found


def undone(root: Path, before: str, function: Function) -> Generated | None:
    """The function as it was in `before`, as a mutant of the one that it is now. None if it is new, or the same."""
    try:
        then = functions(function.path, _git(root, "show", f"{before}:{function.path}"))
    except subprocess.CalledProcessError:  # the file is new
        return None
    now = ast.unparse(function.node)
    old = [ast.unparse(each.node) for each in then if each.name == function.name]
    if len(old) != 1 or old[0] == now:
        return None
    return Generated(function.path, function.name, function.node.lineno, UNDONE, now, old[0])


UNDONE = "as it was before"


def _changed_lines(root: Path, before: str, path: str) -> set[int]:
    """Numbers of lines that were added or changed; where lines are gone, those on both sides."""
    diff = _git(root, "diff", "--unified=0", "--no-color", "--no-ext-diff", before, "--", path)
    lines: set[int] = set()
    for start, num in re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", diff, re.MULTILINE):
        first, size = int(start), int(num or 1)
        lines |= set(range(first, first + size)) if size else {first, first + 1}
    return lines


def _git(root: Path, *command: str) -> str:
    return subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True).stdout
