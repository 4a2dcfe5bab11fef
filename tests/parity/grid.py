"""The parity grid and a pairwise subset of it."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations, product

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

Pair = tuple[int, Hashable, int, Hashable]


def pairs_of(combination: Combination) -> set[Pair]:
    """Every two parameters with their values."""
    values = astuple(combination)
    return {(i, values[i], j, values[j]) for i, j in combinations(range(len(values)), 2)}


def pairwise(grid: Sequence[Combination]) -> tuple[Combination, ...]:
    """A subset in which each pair of values of the grid occurs: greedily, the combination with most new pairs next."""
    missing = set().union(*map(pairs_of, grid))

    def picks() -> Iterator[Combination]:
        while missing:
            best = max(grid, key=lambda each: len(pairs_of(each) & missing))
            missing.difference_update(pairs_of(best))
            yield best

    return tuple(picks())


PAIRWISE = pairwise(GRID)
