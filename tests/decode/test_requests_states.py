from itertools import product

import pytest

from decode.requests import MOVES, DecodeState
from transfer.states import advance

LEGAL = {
    "WAITING": "RUNNING FINISHED CANCELLED FAILED",
    "RUNNING": "FINISHED CANCELLED FAILED",
    "FINISHED": "",
    "CANCELLED": "",
    "FAILED": "",
}


@pytest.mark.parametrize("old,new", list(product(DecodeState, DecodeState)))
def test_the_whole_table(old: DecodeState, new: DecodeState) -> None:
    if new.name in LEGAL[old.name].split():
        assert advance(MOVES, old, new) is new
    else:
        with pytest.raises(AssertionError, match=f"illegal move {old.name} -> {new.name}"):
            advance(MOVES, old, new)


def test_every_state_is_in_the_table() -> None:
    assert set(MOVES) == set(DecodeState)
