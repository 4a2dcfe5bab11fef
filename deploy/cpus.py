"""Which cores each worker computes on, when they are pinned: what was asked, and each worker's share. Pure.

What it does not know: how a process is pinned (processes.py), or how many threads it then has (layout.py).
"""

from collections.abc import Sequence
from itertools import pairwise

from deploy.number_lists import NumberList

_LIST = NumberList("cpus", "core", "auto, none, or cores such as 0-3,6")


def read_cpus(text: str, available: Sequence[int]) -> tuple[int, ...] | None:
    """The cores that workers share: all that are `available` for "auto", None (nobody is pinned) for "none", else those
    in a list such as "0-3,6". ConfigError says what is wrong with it."""
    if text == "none":
        return None
    return tuple(sorted(available)) if text == "auto" else _LIST.read(text, available)


def share_cpus(cpus: Sequence[int], num_workers: int) -> list[tuple[int, ...]]:
    """Each worker's cores, in order: as equal as can be, the first ones get more; where cores are fewer, workers
    take turns to share one."""
    if len(cpus) < num_workers:
        return [(cpus[index % len(cpus)],) for index in range(num_workers)]
    bounds = [-(-len(cpus) * index // num_workers) for index in range(num_workers + 1)]
    return [tuple(cpus[start:end]) for start, end in pairwise(bounds)]
