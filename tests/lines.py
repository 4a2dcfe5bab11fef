"""`python -m tests.lines [FOLDER]`: lines of Python of a checkout, by room. Code is what is left of all lines without
blanks, comments and docstrings; a statement over three lines is three lines."""

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

TESTS = ("tests/", "testkit/")
TOOLS = ("bench/", "loadtest/", "models/")
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
KINDS = ("files", "code", "docstrings", "comments", "blanks")


def count(source: str) -> Counter[str]:
    """One file's lines of each kind. A line with code and a comment is code."""
    kinds: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            kinds |= dict.fromkeys(range(token.start[0], token.end[0] + 1), "code")
        elif token.type == tokenize.COMMENT:
            kinds.setdefault(token.start[0], "comments")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            text = node.body[0]
            kinds |= dict.fromkeys(range(text.lineno, (text.end_lineno or text.lineno) + 1), "docstrings")
    counts = Counter(kinds.values())
    return counts + Counter(files=1, blanks=len(source.splitlines()) - counts.total())


def by_room(root: Path) -> dict[str, Counter[str]]:
    """Each room's lines, then those of the product, of tools and of tests. Files that git ignores do not count."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    paths = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split()
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    parts: dict[str, Counter[str]] = {"product": Counter(), "tools": Counter(), "tests": Counter()}
    for path in sorted(path for path in paths if (root / path).is_file()):
        lines = count((root / path).read_text())
        rooms[path.partition("/")[0]] += lines
        parts["tests" if path.startswith(TESTS) else "tools" if path.startswith(TOOLS) else "product"] += lines
    return {room: lines for room, lines in rooms.items() if room != "tests"} | parts


if __name__ == "__main__":
    sys.stdout.write(f"| {'':<10} | {' | '.join(f'{kind:>10}' for kind in KINDS)} |\n|---|{'---:|' * len(KINDS)}\n")
    for name, lines in by_room(Path(sys.argv[1] if len(sys.argv) > 1 else ".")).items():
        sys.stdout.write(f"| {name:<10} | {' | '.join(f'{lines[kind]:>10,}' for kind in KINDS)} |\n")
