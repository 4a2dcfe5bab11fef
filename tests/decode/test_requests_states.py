from itertools import product

import pytest

from decode.requests import MOVES, DecodeState
from tests.decode.driving import Phase, drive_to, expect_rest, greedy, make_cluster, prompt_of, slow_network
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


@pytest.mark.parametrize("phase", [Phase.RESERVING, Phase.REQUESTED, Phase.RECEIVING, Phase.RUNNING], ids=str)
def test_a_request_that_is_cancelled_says_so_to_who_still_holds_it(phase: Phase) -> None:
    """What waits for its KV on the device reads the state: a request that has ended does not decode."""
    cluster = make_cluster(network=slow_network())
    cluster.assign("victim", prompt_of("victim", 61), greedy(15))
    drive_to(cluster, "victim", phase)
    (worker,) = cluster.decodes.values()
    (request,) = worker._requests.by_key.values()
    cluster.cancel("victim")
    cluster.run()
    assert request.state is DecodeState.CANCELLED
    expect_rest(cluster)
