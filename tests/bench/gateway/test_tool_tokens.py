"""What calls of tools cost: a turn whose streams are over too early is taken again."""

import pytest

from bench.gateway.tool_tokens import TURNS, until_measured


def test_the_first_turn_with_a_figure_counts() -> None:
    turns = iter([None, None, 2.5, 3.5])
    assert until_measured(lambda: next(turns)) == 2.5 and next(turns) == 3.5


def test_streams_that_are_always_over_too_early_are_told_of() -> None:
    turns = list[int]()
    with pytest.raises(RuntimeError, match="give --tool-out more"):
        until_measured(lambda: turns.append(1))
    assert len(turns) == TURNS
