from itertools import product

import pytest

from transfer.states import MOVES, Transfer, TransferState, advance, least

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
        assert advance(MOVES, old, new) is new
    else:
        with pytest.raises(AssertionError, match=f"illegal move {old.name} -> {new.name}"):
            advance(MOVES, old, new)


@pytest.mark.parametrize("states,agreed", list(AGREED.items()))
def test_ranks_agree_on_the_least_state(states: tuple[str, str], agreed: str) -> None:
    one, other = (TransferState[name] for name in states)
    assert least([one, other]) is least([other, one]) is least([other, one, other]) is TransferState[agreed]


@pytest.mark.parametrize("state", TransferState)
def test_ranks_in_one_state_agree_on_it(state: TransferState) -> None:
    assert least([state]) is least([state, state]) is state


def test_a_transfer_is_delivered_when_its_last_rank_is() -> None:
    transfer = Transfer(num_ranks=2)
    seen = [transfer.state]
    for state in (TransferState.REQUESTED, TransferState.RECEIVING, TransferState.DELIVERED):
        for rank in (1, 0):
            transfer.move(state, rank)
            seen.append(transfer.state)
    names = [state.name for state in seen]
    assert names == ["RESERVING", "RESERVING", "REQUESTED", "REQUESTED", "RECEIVING", "RECEIVING", "DELIVERED"]
    with pytest.raises(AssertionError, match="illegal move DELIVERED -> FAILED"):
        transfer.move(TransferState.FAILED, 1)


def test_a_transfer_fails_with_one_rank_whatever_the_others_are() -> None:
    transfer = Transfer(num_ranks=2)
    transfer.move(TransferState.REQUESTED)
    transfer.move(TransferState.FAILED, 1)
    assert transfer.state is TransferState.FAILED
