"""Each table of measurements says at which commit it was taken, and those that are older than their paths are named."""

import subprocess
from pathlib import Path

import pytest

from tests import measured
from tests.measured import PAGE, ROOT, Table, changed, main, tables_of

TEXT = """# Page

<!-- at 1a2b3c4: model/ a.py -->
| a | b |
|---|---|
| 1 | 2 |

## Another

| c |
|---|
"""


def git(root: Path, *words: str) -> str:
    command = (
        "git",
        "-C",
        str(root),
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
        *words,
    )
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def committed(root: Path, path: str) -> str:
    """The commit of a new line in a file."""
    with (root / path).open("a") as file:
        file.write("a line\n")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", path)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "docs").mkdir()
    return tmp_path


def test_tables_are_found_with_their_comments() -> None:
    one, other = tables_of(TEXT)
    assert one == Table(4, "Page", "1a2b3c4", ("model/", "a.py"))
    assert (other.heading, other.commit, other.paths) == ("Another", "", ())


def test_each_table_of_the_page_has_a_comment_whose_paths_exist() -> None:
    tables = tables_of((ROOT / PAGE).read_text())
    assert len(tables) > 50
    assert [table for table in tables if not table.commit] == []
    assert [path for table in tables for path in table.paths if not (ROOT / path).exists()] == []


def test_commits_since_then_count_if_they_change_the_paths(root: Path) -> None:
    first = committed(root, "a.py")
    assert changed(Table(1, "", first, ("a.py",)), root) == 0
    for path in ("b.py", "a.py", "a.py"):
        committed(root, path)
    assert changed(Table(1, "", first, ("a.py",)), root) == 2
    assert changed(Table(1, "", first, ("a.py", "b.py")), root) == 3
    assert changed(Table(1, "", first, ()), root) == 0
    assert changed(Table(1, "", "0" * 40, ("a.py",)), root) is None


def test_a_line_names_each_heading_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = committed(root, "a.py")
    committed(root, "b.py")
    table = "<!-- at {}: {} -->\n| a |\n|---|\n\n"
    shown = [table.format(first, paths) for paths in ("a.py", "b.py", "a.py b.py")]
    (root / PAGE).write_text(f"# Old\n\n{shown[1]}{shown[2]}# New\n\n{shown[0]}")
    monkeypatch.setattr(measured, "ROOT", root)
    assert main() == 0
    title, line = capsys.readouterr().out.splitlines()
    assert title == f"{PAGE}: 2 of 3 tables are older than what they measure"
    assert line == f"  Old: 1 commits since {first} in b.py"
