from itertools import product

import pytest

from prefill.job_states import MOVES, JobState
from runtime.state_table import advance

LEGAL = {
    "WAITING": "COMPUTING CANCELLED FAILED",
    "COMPUTING": "SENDING DELIVERED CANCELLED FAILED",
    "SENDING": "DELIVERED CANCELLED FAILED",
    "DELIVERED": "",
    "CANCELLED": "",
    "FAILED": "",
}


@pytest.mark.parametrize("old,new", list(product(JobState, JobState)))
def test_the_whole_table(old: JobState, new: JobState) -> None:
    if new.name in LEGAL[old.name].split():
        assert advance(MOVES, old, new) is new
    else:
        with pytest.raises(AssertionError, match=f"illegal move {old.name} -> {new.name}"):
            advance(MOVES, old, new)


def test_every_state_is_in_the_table() -> None:
    assert set(MOVES) == set(JobState)
