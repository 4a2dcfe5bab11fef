from itertools import product

import pytest

from transfer.states import TRANSITIONS, TransferState, advance, least

LEGAL = {
    "RESERVING": "REQUESTED CANCELLED FAILED",
    "REQUESTED": "RECEIVING SENDING CANCELLED FAILED",
    "RECEIVING": "DELIVERED CANCELLED FAILED",
    "SENDING": "DELIVERED CANCELLED FAILED",
    "DELIVERED": "",
    "CANCELLED": "",
    "FAILED": "",
}
AGREED = {  # what two ranks of one end agree on
    ("FAILED", "CANCELLED"): "FAILED",
    ("FAILED", "DELIVERED"): "FAILED",
    ("CANCELLED", "RESERVING"): "CANCELLED",
    ("CANCELLED", "DELIVERED"): "CANCELLED",
    ("RESERVING", "REQUESTED"): "RESERVING",
    ("RESERVING", "DELIVERED"): "RESERVING",
    ("REQUESTED", "RECEIVING"): "REQUESTED",
    ("REQUESTED", "SENDING"): "REQUESTED",
    ("REQUESTED", "DELIVERED"): "REQUESTED",
    ("RECEIVING", "DELIVERED"): "RECEIVING",
    ("SENDING", "DELIVERED"): "SENDING",
}


@pytest.mark.parametrize("old,new", list(product(TransferState, TransferState)))
def test_the_whole_table(old: TransferState, new: TransferState) -> None:
    if new.name in LEGAL[old.name].split():
        assert advance(TRANSITIONS, old, new) is new
    else:
        with pytest.raises(AssertionError, match=f"illegal move {old.name} -> {new.name}"):
            advance(TRANSITIONS, old, new)


@pytest.mark.parametrize("states,agreed", list(AGREED.items()))
def test_ranks_agree_on_the_least_state(states: tuple[str, str], agreed: str) -> None:
    one, other = (TransferState[name] for name in states)
    assert least([one, other]) is least([other, one]) is least([other, one, other]) is TransferState[agreed]


@pytest.mark.parametrize("state", TransferState)
def test_ranks_in_one_state_agree_on_it(state: TransferState) -> None:
    assert least([state]) is least([state, state]) is state


def test_a_request_is_reserving_before_its_ranks_have_begun() -> None:
    assert least([]) is TransferState.RESERVING
