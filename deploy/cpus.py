"""Which cores each worker computes on, when they are pinned: a list as people write it, and each worker's share. Pure.

What it does not know: how a process is pinned (processes.py), or how many threads it then has (layout.py).
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from protocol.errors import ConfigError

MAX_CHARS = 1000
_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def read_cpus(text: str, available: Sequence[int]) -> tuple[int, ...] | None:
    """The cores that workers share: all that are `available` for "auto", None (nobody is pinned) for "none", else those
    in a list such as "0-3,6". ConfigError says what is wrong with it."""
    if text == "none":
        return None
    if text == "auto":
        return tuple(sorted(available))
    shown = text[:80]
    found: list[int] = []
    for part in text[:MAX_CHARS].split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or len(text) > MAX_CHARS:
            raise ConfigError(f"--cpus: got {shown!r}, expected auto, none, or cores such as 0-3,6", param="cpus")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ConfigError(f"--cpus: got {shown!r}, expected {last}-{first}", param="cpus")
        unknown = next((core for core in range(first, last + 1) if core not in available), None)
        if unknown is not None:
            here = show_cpus(available)
            raise ConfigError(
                f"--cpus: got {shown!r}, but there is no core {unknown} for us; there are {here}", param="cpus"
            )
        twice = next((core for core in range(first, last + 1) if core in found), None)
        if twice is not None:
            raise ConfigError(f"--cpus: got {shown!r}, which names core {twice} twice", param="cpus")
        found += range(first, last + 1)
    return tuple(found)


def share_cpus(cpus: Sequence[int], num_workers: int) -> list[tuple[int, ...]]:
    """Each worker's cores, in order: as equal as can be, the first ones get more; where cores are fewer, workers
    take turns to share one."""
    if len(cpus) < num_workers:
        return [(cpus[index % len(cpus)],) for index in range(num_workers)]
    bounds = [-(-len(cpus) * index // num_workers) for index in range(num_workers + 1)]
    return [tuple(cpus[start:end]) for start, end in pairwise(bounds)]


def show_cpus(cpus: Sequence[int]) -> str:
    """`0-3,6`."""
    parts: list[list[int]] = []
    for core in sorted(cpus):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
