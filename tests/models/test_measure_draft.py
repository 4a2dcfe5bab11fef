"""Counting of accepted proposals, and the noise that both sides share."""

import pytest

from models.train.draft_text import Text
from models.train.measure_draft import MAX_STEPS, accepted, figures

TEXT = Text(ids=(5, 6, 7, 8, 9, 10, 11), num_prompt=2)  # prefill draws token 2, launches the tokens 3 to 6


def right(*proposals: tuple[int, int]) -> list[list[bool]]:
    """(step, slot) of the proposals that are right; a step counts from 0."""
    return [[(step, slot) in proposals for slot in range(len(TEXT.ids))] for step in range(MAX_STEPS)]


@pytest.mark.parametrize(
    "proposals, num_steps, runs",
    [
        ((), 4, [0, 0, 0, 0]),
        (((0, 1), (1, 2), (2, 3), (3, 4)), 4, [4]),  # the end of the text takes the place of the bonus
        (((0, 1), (1, 2), (2, 3), (3, 4)), 2, [2, 0]),
        (((0, 1), (2, 3)), 4, [1, 0, 0]),  # nothing counts behind a wrong one
        (((1, 2), (2, 3)), 4, [0, 0, 0, 0]),
        (((0, 2),), 4, [0, 1, 0]),  # the launch behind token 3 begins at slot 2
    ],
)
def test_a_run_ends_at_the_first_wrong_proposal(
    proposals: tuple[tuple[int, int], ...], num_steps: int, runs: list[int]
) -> None:
    assert accepted(right(*proposals), TEXT, num_steps) == runs


def test_figures_count_tokens_per_launch() -> None:
    found = figures([right((0, 1)), right()], [TEXT, TEXT])
    assert found.lengths == [8 / 7] * MAX_STEPS
    assert found.shares == [1 / 7, *[0.0] * (MAX_STEPS - 1)]
