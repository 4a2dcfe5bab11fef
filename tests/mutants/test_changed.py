"""Which functions a change touches, in a repository of its own."""

import subprocess
from pathlib import Path

import pytest

from tests.mutants.changed import changed_functions, default_before, product, undone

SOURCE = """\
def first(a):
    b = a
    return b


class Pool:
    def take(self):
        return 1

    def give(self):
        return 2
"""


def git(root: Path, *command: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    return subprocess.run(["git", *identity, *command], cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("scheduler/pool.py", "tests/test_pool.py", "decode/pool.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SOURCE)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def change(root: Path, old: str, new: str, name: str = "scheduler/pool.py") -> None:
    text = (root / name).read_text()
    assert old in text
    (root / name).write_text(text.replace(old, new))


def changed(root: Path, before: str = "HEAD") -> list[str]:
    return [f"{each.path} {each.name}" for each in changed_functions(root, before)]


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ("return 1", "return 3", ["Pool.take"]),
        ("    b = a\n", "", ["first"]),
        ("    b = a\n", "    b = a\n    b += 1\n", ["first"]),
        ("    def give", "    @property\n    def give", ["Pool.give"]),
        ("class Pool:", "class Pools:", []),
        ("return 1", "return 1  # one", ["Pool.take"]),
        ("def first(a):", "def zeroth():\n    pass\n\n\ndef first(a):", ["zeroth"]),
    ],
)
def test_functions_with_a_line_that_is_not_committed_have_changed(
    root: Path, old: str, new: str, expected: list[str]
) -> None:
    assert changed(root) == []
    change(root, old, new)
    assert changed(root) == [f"scheduler/pool.py {name}" for name in expected]


def test_what_was_committed_since_counts_and_so_do_new_files_but_not_tests(root: Path) -> None:
    change(root, "return 1", "return 3")
    git(root, "commit", "-qam", "second")
    change(root, "return 2", "return 3", "decode/pool.py")
    change(root, "return 2", "return 3", "tests/test_pool.py")
    (root / "decode/more.py").write_text("def more():\n    return 1\n")
    assert changed(root) == ["decode/more.py more", "decode/pool.py Pool.give"]
    assert changed(root, "HEAD~1") == ["decode/more.py more", "decode/pool.py Pool.give", "scheduler/pool.py Pool.take"]
    assert product(root) == ["decode/more.py", "decode/pool.py", "scheduler/pool.py"]


def test_a_changed_function_as_it_was_before_is_a_mutant(root: Path) -> None:
    change(root, "return 1", "return 3")
    change(root, "return 2", "return 2  # two")
    change(root, "def first(a):", "def zeroth():\n    pass\n\n\ndef first(a):")
    found = {each.name: undone(root, "HEAD", each) for each in changed_functions(root, "HEAD")}
    assert set(found) == {"zeroth", "Pool.take", "Pool.give"}
    assert found["zeroth"] is None and found["Pool.give"] is None  # new, and the same but for a comment
    take = found["Pool.take"]
    assert take is not None and "return 1" in take.text((root / "scheduler/pool.py").read_text())


def test_before_is_where_the_branch_has_left_main_or_the_last_commit(root: Path) -> None:
    first = git(root, "rev-parse", "HEAD").strip()
    for text in ("3", "4"):
        change(root, f"return {int(text) - 2}", f"return {text}0")
        git(root, "commit", "-qam", text)
    assert default_before(root) == git(root, "rev-parse", "HEAD~1").strip()
    git(root, "update-ref", "refs/remotes/origin/main", first)
    assert default_before(root) == first
