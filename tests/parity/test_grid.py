"""The subset that is run more often covers what it says."""

from testkit.checkpoints import ARCHITECTURES
from tests.parity.grid import EACH_VALUE, GRID, PAIRWISE, pairs_of, values_of


def test_the_grid_is_whole() -> None:
    assert len(set(GRID)) == len(ARCHITECTURES) * 3 * 2 * 2 * 2


def test_each_pair_of_values_occurs() -> None:
    assert set().union(*map(pairs_of, PAIRWISE)) == set().union(*map(pairs_of, GRID))
    assert len(PAIRWISE) == len(ARCHITECTURES) * 3, "each model with each topology"


def test_a_smaller_subset_covers_every_value() -> None:
    assert set().union(*map(values_of, EACH_VALUE)) == set().union(*map(values_of, GRID))
    assert {*EACH_VALUE} < {*PAIRWISE}
