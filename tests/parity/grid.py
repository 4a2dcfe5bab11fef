"""The parity grid, that of groups of ranks, a pairwise subset of each, and a smaller one."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations, product
from typing import TypeVar

from testkit.checkpoints import ARCHITECTURES, OF_EXPERTS, Architecture

TOPOLOGIES = ("1P1D", "2P2D", "1U")
PAGE_SIZES = (1, 16)
CHUNK_SIZES = (32, 0)  # tokens; 0: whole prompts
NUMS_RANKS = (2, 4)
GROUPS = {"unified": "1U", "prefill": "1P1D", "decode": "1P1D", "both": "1P1D"}  # which workers are groups: topology
EVENTS = ("none", "cached", "preempted", "killed")  # prompts come again; the pool is small; a rank is killed


@dataclass(frozen=True)
class Combination:
    """One point of the grid."""

    arch: Architecture
    topology: str
    overlap: bool
    page_size: int
    chunk_size: int

    def __str__(self) -> str:
        return (
            f"{self.arch}-{self.topology}-{'overlap' if self.overlap else 'serial'}"
            f"-page{self.page_size}-chunk{self.chunk_size or 'whole'}"
        )


@dataclass(frozen=True)
class Grouped(Combination):
    """One point of the grid of groups."""

    group: str
    num_ranks: int
    event: str

    def __str__(self) -> str:
        return f"{super().__str__()}-{self.group}-of-{self.num_ranks}-{self.event}"


GRID = tuple(
    Combination(*values) for values in product(ARCHITECTURES, TOPOLOGIES, (True, False), PAGE_SIZES, CHUNK_SIZES)
)
GROUPED_GRID = tuple(
    Grouped(arch, GROUPS[group], overlap, page_size, chunk_size, group, num_ranks, event)
    for arch, overlap, page_size, chunk_size, group, num_ranks, event in product(
        OF_EXPERTS, (True, False), PAGE_SIZES, CHUNK_SIZES, GROUPS, NUMS_RANKS, EVENTS
    )
)

Value = tuple[int, Hashable]
Pair = tuple[int, Hashable, int, Hashable]
Part = TypeVar("Part", Value, Pair)
Point = TypeVar("Point", bound=Combination)


def pairs_of(combination: Combination) -> set[Pair]:
    """Every two parameters with their values."""
    values = astuple(combination)
    return {(i, values[i], j, values[j]) for i, j in combinations(range(len(values)), 2)}


def values_of(combination: Combination) -> set[Value]:
    """Every parameter with its value."""
    return set(enumerate(astuple(combination)))


def covering(grid: Sequence[Point], parts_of: Callable[[Combination], set[Part]]) -> tuple[Point, ...]:
    """A subset with each part that occurs in the grid: greedily, the combination with most new parts next."""
    missing = set().union(*map(parts_of, grid))

    def picks() -> Iterator[Point]:
        while missing:
            best = max(grid, key=lambda each: len(parts_of(each) & missing))
            missing.difference_update(parts_of(best))
            yield best

    return tuple(picks())


PAIRWISE = covering(GRID, pairs_of)
EACH_VALUE = covering(PAIRWISE, values_of)  # fewer: each architecture, topology, size, and way to launch comes once
GROUPED_PAIRWISE = covering(GROUPED_GRID, pairs_of)
GROUPED_EACH_VALUE = covering(GROUPED_PAIRWISE, values_of)
