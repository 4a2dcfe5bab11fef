"""Numbers are read as tables show them."""

import pytest

from loadtest.figures.distribution import number
from tests.bench.reading import figure


@pytest.mark.parametrize("value", [0.12, 5.0, 99.0, 150.0, 1527.0, 12_345_678.0])
def test_a_number_is_read_as_it_is_shown(value: float) -> None:
    assert figure(number(value)) == value
    assert figure(f"{number(value)} (1-2)") == value
