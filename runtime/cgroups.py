"""The control groups of this process: the folders in which the kernel's limits on its cores and its memory are written.

Version 2 has one tree for everything, version 1 a tree for each controller. A machine may have both.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

OF_THIS_PROCESS: Final = Path("/proc/self/cgroup")
ROOT: Final = Path("/sys/fs/cgroup")


class ControlGroup(NamedTuple):
    """A group of one version or the other."""

    folder: Path
    is_v2: bool


def groups_of(controller: str, listing: Path = OF_THIS_PROCESS, root: Path = ROOT) -> Iterator[ControlGroup]:
    """Each group whose limits hold for this process: its own group, then the parents. `controller` is "cpu" or
    "memory". Nothing if cgroups cannot be read; a folder may be absent."""
    for line in read_if_there(listing).splitlines():
        _, controllers, path = line.split(":", 2)
        is_v2 = controllers == ""
        if not is_v2 and controller not in controllers.split(","):
            continue

        # Inside a container the path may be the host's. The mounted root is then the container's own group.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for top in [root] if is_v2 else [root / name for name in dict.fromkeys((controllers, controller))]:
            for depth in range(len(parts), -1, -1):
                yield ControlGroup(top.joinpath(*parts[:depth]), is_v2)


def read_if_there(path: Path) -> str:
    """The text of the file; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
