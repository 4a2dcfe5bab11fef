"""The counter of lines."""

import subprocess
from pathlib import Path

import pytest

from tests.lines import by_room, count

SOURCE = '''"""Of two
lines."""

import os  # used


# alone
class A:
    """One."""

    text = """not

    a docstring"""

    def f(self):
        "Text."
        return os.path.join(
            # why
            self.text,
        )
'''


def test_each_line_is_of_one_kind() -> None:
    lines = count(SOURCE)
    assert lines == {"files": 1, "code": 9, "docstrings": 4, "comments": 2, "blanks": 5}
    assert lines.total() - 1 == len(SOURCE.splitlines())


@pytest.mark.parametrize("source", ["", "\n", "a = 1", '"""Only a text."""\n'])
def test_small_files(source: str) -> None:
    lines = count(source)
    assert lines.total() - 1 == len(source.splitlines())
    assert lines["code"] == source.count("a =")


def test_rooms_are_summed_and_tools_and_tests_stand_apart(tmp_path: Path) -> None:
    for path in (
        "decode/a.py",
        "decode/b.py",
        "bench/a.py",
        "models/train/a.py",
        "testkit/a.py",
        "tests/decode/test_a.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("a = 1\n\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    code = {name: lines["code"] for name, lines in by_room(tmp_path).items()}
    assert code == {"bench": 1, "decode": 2, "models": 1, "testkit": 1, "product": 2, "tools": 2, "tests": 2}
