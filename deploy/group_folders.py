"""The folders in which the ranks of a group meet: one for each start of a group, open to this user only.

    /tmp/baton-ranks-XXXXXXXX/    of one launcher, which holds a lock on it while it lives
        1/, 2/, ...               each of one start of one group; ranks make sockets in it

A launcher that is killed leaves its folder without a lock. The next launcher that starts a group removes it. What
cleans temporary folders by their age (systemd-tmpfiles) leaves a locked one alone.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from deploy.options import MAX_RANKS

PREFIX: Final = "baton-ranks-"
SOCKET_PATH_BYTES: Final = 107  # sun_path of unix(7) without its last byte, 0
LONGEST_NAME: Final = f"values-{MAX_RANKS - 1}"  # of the sockets that ranks make there; the others are rank-N
MAX_FOLDER_BYTES: Final = SOCKET_PATH_BYTES - len(f"/{LONGEST_NAME}")


class GroupFolders:
    """The folders of one launcher. It makes nothing before the first is asked for."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._lock = -1
        self._num_made = 0

    def make(self) -> str:
        """The path of a new empty folder. OSError if it cannot be made."""
        if self._root is not None and not self._root.is_dir():  # somebody has cleaned up
            self.close()
        if self._root is None:
            base = Path(tempfile.gettempdir())
            _remove_leftovers(base)
            self._root, self._lock = _make_root(base)

        self._num_made += 1
        folder = self._root / str(self._num_made)
        if len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
            expected = f"expected a path of at most {MAX_FOLDER_BYTES} bytes, for sockets; set TMPDIR to a shorter one"
            raise OSError(f"its ranks cannot meet in {folder}: {expected}")
        folder.mkdir(mode=0o700)
        return str(folder)

    def remove(self, folder: str) -> None:
        """Removes a folder and what the ranks have left there, if somebody else has not."""
        _remove(folder)

    def close(self) -> None:
        """Removes everything. More folders may be made later."""
        if self._root is not None:
            _remove(self._root)
            os.close(self._lock)
            self._root, self._lock = None, -1


def _make_root(base: Path) -> tuple[Path, int]:
    """A new folder in `base` and the descriptor that locks it. Another launcher may remove the folder before it is
    locked: then there is another."""
    while True:
        root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        lock = _locked(root)
        if lock is not None:
            return root, lock


def _locked(folder: Path) -> int | None:
    """A descriptor that locks the folder. None if another one does, or if there is no such folder of this user."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it was removed, or it is another user's, or no folder
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.stat(folder, follow_symlinks=False)
        if status.st_uid == os.geteuid() and os.path.samestat(status, os.fstat(fd)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def _remove_leftovers(base: Path) -> None:
    """Removes the folders of this user's launchers that live no more."""
    for folder in base.glob(f"{PREFIX}*"):
        lock = _locked(folder)
        if lock is not None:
            _remove(folder)
            os.close(lock)


def _remove(folder: Path | str) -> None:
    """Removes what is still there. What cannot be removed stays: no group starts later because of that."""
    shutil.rmtree(folder, ignore_errors=True)
