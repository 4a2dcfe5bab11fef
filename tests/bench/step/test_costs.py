"""The cost model: what follows from costs and accepted lengths, and one measurement of a tiny model."""

import pytest

from bench.step.costs import Costs, geometric

COSTS = Costs(plain_us=10.0, draft_us=3.0, verify_us=(11.0, 12.0, 13.0), extend_us=(4.0, 4.5, 5.0))


def test_a_launch_is_draft_steps_verification_and_draft_extend() -> None:
    assert [COSTS.launch_us(num_steps) for num_steps in range(4)] == [10.0, 15.0, 19.5, 24.0]


def test_speed_is_tokens_of_a_launch_over_its_time() -> None:
    assert COSTS.speed_up([1.5, 2.4, 2.5], 2) == pytest.approx(2.4 * 10 / 19.5)
    assert COSTS.speed_up([1.5, 2.4, 2.5], 0) == 1.0


@pytest.mark.parametrize("acceptance, steps", [(0.0, 0), (0.4, 0), (0.6, 1), (0.95, 3)])
def test_the_best_number_of_steps_rises_with_acceptance(acceptance: float, steps: int) -> None:
    assert COSTS.best(geometric(acceptance, 3)) == steps


def test_accepted_lengths_count_the_bonus() -> None:
    assert geometric(0.0, 2) == [1.0, 1.0]
    assert geometric(0.5, 3) == [1.5, 1.75, 1.875]
