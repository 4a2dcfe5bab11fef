"""Which cores each worker is pinned to: reads --cpus and gives each worker a share. Pure."""

from collections.abc import Sequence
from itertools import pairwise

from deploy.number_lists import NumberList

_LIST = NumberList("cpus", "core", "auto, none, or cores such as 0-3,6")


def read_cpus(text: str, available: Sequence[int]) -> tuple[int, ...] | None:
    """The cores that workers share: all `available` cores for "auto", None (no pinning) for "none", else the cores of a
    list such as "0-3,6". Raises ConfigError for a wrong list."""
    if text == "none":
        return None
    return tuple(sorted(available)) if text == "auto" else _LIST.read(text, available)


def share_cpus(cpus: Sequence[int], num_workers: int) -> list[tuple[int, ...]]:
    """Each worker's cores, in order. Shares differ by one core at most. With fewer cores than workers, each worker gets
    one core, and several workers share it."""
    if len(cpus) < num_workers:
        return [(cpus[index % len(cpus)],) for index in range(num_workers)]
    bounds = [-(-len(cpus) * index // num_workers) for index in range(num_workers + 1)]
    return [tuple(cpus[start:end]) for start, end in pairwise(bounds)]
