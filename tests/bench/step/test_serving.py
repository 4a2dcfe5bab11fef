"""Prompts whose answers are long enough to be measured."""

import pytest

from bench.step.serving import long_prompts


def test_prompts_whose_answers_end_are_left_out() -> None:
    asked, answers = [(1,), (2,), (3,)], [[5, 6, 2], [7, 8, 9], [4, 4, 4]]
    assert long_prompts(asked, answers, [2, 0], 2) == [(2,), (3,)]
    with pytest.raises(RuntimeError, match="2 of 3 answers are long enough, expected 3"):
        long_prompts(asked, answers, [2, 0], 3)
