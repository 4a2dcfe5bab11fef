"""The rows of the benchmark's tables."""

import pytest

from bench.spec.__main__ import row_of
from bench.spec.costs import Costs
from models.train.measure_draft import MAX_STEPS


@pytest.mark.parametrize("plain_us, part_us", [(100_000.0, 100.0), (100.0, 100_000.0)])
def test_a_part_that_other_work_has_disturbed_makes_no_ratio_nothing(plain_us: float, part_us: float) -> None:
    costs = Costs(plain_us, part_us, (part_us,) * MAX_STEPS, (part_us,) * MAX_STEPS)
    row = row_of(1, "greedy", costs, [1.5] * MAX_STEPS)
    assert min(value for name, value in row.items() if name.startswith("x") or " / " in name) > 0
