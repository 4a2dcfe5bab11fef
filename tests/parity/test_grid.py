"""The subset that is run more often covers what it says."""

import pytest

from testkit.checkpoints import ARCHITECTURES, OF_EXPERTS
from tests.parity.grid import (
    EACH_VALUE,
    GRID,
    GROUPED_EACH_VALUE,
    GROUPED_GRID,
    GROUPED_PAIRWISE,
    PAIRWISE,
    Combination,
    pairs_of,
    values_of,
)


def test_the_grid_is_whole() -> None:
    assert len(set(GRID)) == len(ARCHITECTURES) * 3 * 2 * 2 * 2
    assert len(set(GROUPED_GRID)) == len(OF_EXPERTS) * 2 * 2 * 2 * 4 * 2 * 4


def test_each_pair_of_values_occurs() -> None:
    assert set().union(*map(pairs_of, PAIRWISE)) == set().union(*map(pairs_of, GRID))
    assert len(PAIRWISE) == len(ARCHITECTURES) * 3, "each model with each topology"
    assert set().union(*map(pairs_of, GROUPED_PAIRWISE)) == set().union(*map(pairs_of, GROUPED_GRID))


@pytest.mark.parametrize(
    "grid, pairwise, smaller", [(GRID, PAIRWISE, EACH_VALUE), (GROUPED_GRID, GROUPED_PAIRWISE, GROUPED_EACH_VALUE)]
)
def test_a_smaller_subset_covers_every_value(
    grid: tuple[Combination, ...], pairwise: tuple[Combination, ...], smaller: tuple[Combination, ...]
) -> None:
    assert set().union(*map(values_of, smaller)) == set().union(*map(values_of, grid))
    assert {*smaller} < {*pairwise}
