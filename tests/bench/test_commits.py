"""Two commits in turns: a checkout that is gone afterwards."""

import subprocess
from pathlib import Path

import pytest

from bench.commits import checked_out, command_in


def test_an_earlier_commit_lies_beside_this_one_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own files are served from it."""
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run([*git, "init", "--quiet"], check=True)
    for text in ("first", "second"):
        (tmp_path / "file").write_text(text)
        subprocess.run([*git, "add", "file"], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", text], check=True)
    monkeypatch.setattr("bench.commits.HERE", tmp_path)

    with checked_out("HEAD~1") as tree:
        assert (tree / "file").read_text() == "first"
        assert command_in(tree)[:3] == ("env", "-C", str(tree))
    assert not tree.exists()
    listed = subprocess.run([*git, "worktree", "list"], check=True, capture_output=True, text=True).stdout
    assert len(listed.splitlines()) == 1
