"""The parity grid, a pairwise subset of it, and a smaller one."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations, product
from typing import TypeVar

from testkit.checkpoints import ARCHITECTURES, Architecture

TOPOLOGIES = ("1P1D", "2P2D", "1U")
PAGE_SIZES = (1, 16)
CHUNK_SIZES = (32, 0)  # tokens; 0: whole prompts


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


GRID = tuple(
    Combination(*values) for values in product(ARCHITECTURES, TOPOLOGIES, (True, False), PAGE_SIZES, CHUNK_SIZES)
)

Value = tuple[int, Hashable]
Pair = tuple[int, Hashable, int, Hashable]
Part = TypeVar("Part", Value, Pair)


def pairs_of(combination: Combination) -> set[Pair]:
    """Every two parameters with their values."""
    values = astuple(combination)
    return {(i, values[i], j, values[j]) for i, j in combinations(range(len(values)), 2)}


def values_of(combination: Combination) -> set[Value]:
    """Every parameter with its value."""
    return set(enumerate(astuple(combination)))


def covering(grid: Sequence[Combination], parts_of: Callable[[Combination], set[Part]]) -> tuple[Combination, ...]:
    """A subset with each part that occurs in the grid: greedily, the combination with most new parts next."""
    missing = set().union(*map(parts_of, grid))

    def picks() -> Iterator[Combination]:
        while missing:
            best = max(grid, key=lambda each: len(parts_of(each) & missing))
            missing.difference_update(parts_of(best))
            yield best

    return tuple(picks())


PAIRWISE = covering(GRID, pairs_of)
EACH_VALUE = covering(PAIRWISE, values_of)  # fewer: each architecture, topology, size, and way to launch comes once
