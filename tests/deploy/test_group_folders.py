import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from socket import AF_UNIX, socket

import pytest

from deploy.group_folders import LONGEST_NAME, MAX_FOLDER_BYTES, PREFIX, GroupFolders
from tests.processes import num_open_files


def test_nothing_is_made_before_the_first_folder_is_asked_for(base: Path) -> None:
    folders = GroupFolders()
    folders.close()
    assert list(base.iterdir()) == []


def test_folders_are_this_users_alone_and_go(base: Path) -> None:
    before = num_open_files()
    folders = GroupFolders()
    first, second = Path(folders.make()), Path(folders.make())
    (first / "rank-0.sock").touch()
    (root,) = base.iterdir()
    assert first != second and {first.parent, second.parent} == {root}
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (root, first, second)} == {0o700}
    folders.remove(str(first))
    assert list(root.iterdir()) == [second]
    folders.remove(str(first))  # its user has removed it
    folders.close()
    assert list(base.iterdir()) == []
    assert num_open_files() == before


def test_a_folder_that_somebody_has_removed_is_made_again(base: Path) -> None:
    before, folders = num_open_files(), GroupFolders()
    folders.make()
    shutil.rmtree(next(base.iterdir()))
    again = Path(folders.make())
    assert again.is_dir() and stat.S_IMODE(again.parent.stat().st_mode) == 0o700
    folders.close()
    assert list(base.iterdir()) == [] and num_open_files() == before


def test_the_folder_of_a_launcher_that_was_killed_goes_at_the_next_start(base: Path) -> None:
    left = base / f"{PREFIX}left"
    (left / "1").mkdir(parents=True)
    (left / "1" / "rank-0.sock").touch()
    (base / "of another program").mkdir()
    (base / f"{PREFIX}file").touch()
    (base / f"{PREFIX}link").symlink_to(base / "of another program")
    living, next_one = GroupFolders(), GroupFolders()
    kept = Path(living.make())
    assert not left.exists()
    next_one.make()
    assert kept.exists()
    living.close()
    next_one.close()
    names = {path.name for path in base.iterdir()}
    assert names == {"of another program", f"{PREFIX}file", f"{PREFIX}link"}


@pytest.mark.parametrize("when", ["before it is opened", "before it is locked", "and makes it again"])
def test_a_folder_that_another_launcher_takes_for_a_leftover_is_made_again(
    base: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Between its making and its lock."""
    before, made, lock = num_open_files(), tempfile.mkdtemp, fcntl.flock
    taken: list[Path] = []

    def take(folder: Path) -> None:
        shutil.rmtree(folder)
        if when == "and makes it again":
            folder.mkdir(mode=0o700)

    def mkdtemp(prefix: str, dir: Path) -> str:  # noqa: A002
        folder = Path(made(prefix=prefix, dir=dir))
        if not taken:
            taken.append(folder)
            if when == "before it is opened":
                take(folder)
        return str(folder)

    def flock(fd: int, operation: int) -> None:
        lock(fd, operation)
        if when != "before it is opened" and len(locked) == 0:
            take(taken[0])
        locked.append(fd)

    locked: list[int] = []
    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setattr(fcntl, "flock", flock)
    folders = GroupFolders()
    folder = Path(folders.make())
    assert folder.is_dir() and folder.parent not in taken
    assert len(locked) == 1 + (when != "before it is opened")
    folders.close()
    assert num_open_files() == before


def test_what_somebody_else_removes_meanwhile_keeps_nothing_from_going(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, unlink = GroupFolders(), os.unlink
    folder = Path(folders.make())
    for rank in range(3):
        (folder / f"rank-{rank}").touch()
    beaten: list[str] = []

    def unlinks_late(name: str, *, dir_fd: int | None = None) -> None:
        unlink(name, dir_fd=dir_fd)
        if not beaten:
            beaten.append(name)
            raise FileNotFoundError(name)

    monkeypatch.setattr(os, "unlink", unlinks_late)
    folders.close()
    assert beaten and list(base.iterdir()) == []


# a letter of two bytes: bytes count, not letters
@pytest.mark.parametrize("letter", ["x", "é"])
def test_ranks_can_bind_sockets_in_every_folder_that_is_not_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    own = len(f"/{PREFIX}12345678/1")
    room = MAX_FOLDER_BYTES - len(os.fsencode(base)) - 1 - own
    for num_bytes, fits in ((room, True), (room + 1, False)):
        count, rest = divmod(num_bytes, len(letter.encode()))
        deep = base / (letter * count + "x" * rest)
        deep.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
        folders = GroupFolders()
        if fits:
            with socket(AF_UNIX) as bound:
                bound.bind(f"{folders.make()}/{LONGEST_NAME}")
            with socket(AF_UNIX) as bound, pytest.raises(OSError, match="AF_UNIX path too long"):
                bound.bind(f"{folders.make()}/{LONGEST_NAME}+")
        else:
            expected = f"expected a path of at most {MAX_FOLDER_BYTES} bytes, for sockets; set TMPDIR to a shorter one"
            with pytest.raises(OSError, match=expected):
                folders.make()
        folders.close()
        assert list(deep.iterdir()) == []
