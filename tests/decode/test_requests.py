from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from decode import requests as decode_requests
from decode.prefill_peers import PrefillPeer
from decode.requests import TRANSITIONS, DecodeState, Requests, reason_to_refuse
from protocol.messages_gateway import Assign, WorkerAddress
from protocol.prefixes import packed
from scheduler.planning.kv_manager import CacheKey
from tests.scheduler.building import greedy, make_req
from tests.scheduler.remembering import make
from transfer.states import advance
from worker.policies import Policies

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
        assert advance(TRANSITIONS, old, new) is new
    else:
        with pytest.raises(AssertionError, match=f"illegal move {old.name} -> {new.name}"):
            advance(TRANSITIONS, old, new)


def test_every_state_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(DecodeState)


def staged(request: Any) -> tuple[Requests, list[int]]:
    """The requests of a worker with one whose KV was delivered, and a list of the landings that were asked for."""
    asked: list[int] = []

    def is_over(landing: int) -> bool:
        asked.append(landing)
        return bool(request.is_copied)

    planner: Any = SimpleNamespace(copies=SimpleNamespace(is_over=is_over))
    policies: Any = SimpleNamespace(prefix=lambda planner: None)
    requests = Requests(planner, cast(Any, None), cast(Any, None), 1, policies)
    requests._staged.append(request)
    return requests, asked


def test_one_that_has_ended_is_forgotten_once_it_is_copied_and_one_that_waits_decodes_once() -> None:
    for state, is_copied, may_decode in product(DecodeState, (True, False), (True, False)):
        request: Any = SimpleNamespace(state=state, landing=7, has_draft=False, reqs=(), is_copied=is_copied)
        requests, asked = staged(request)
        taken = requests.take_staged(lambda _, may=may_decode: may)  # type: ignore[misc]
        waits = state is DecodeState.WAITING
        assert taken == ([request] if waits and is_copied and may_decode else [])

        request.is_copied = True
        again = requests.take_staged(lambda _: True)
        is_kept = not is_copied or (waits and not may_decode)
        assert asked == [7] * (1 + is_kept), "looked at as long as it is staged"
        assert again == ([request] if waits and is_kept else [])
        assert requests.take_staged(lambda _: True) == [] and len(asked) == 1 + is_kept


def test_only_a_request_whose_second_token_it_draws_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def needed(assign: Any, planner: Any, num_tokens: int, num_choices: int) -> str:
        return str(num_tokens)

    monkeypatch.setattr(decode_requests, "assign_fault", needed)
    tokens = [
        reason_to_refuse(cast(Any, SimpleNamespace(num_tokens=9, num_left=left, num_choices=1)), cast(Any, None))
        for left in (1, 2, 3)
    ]
    assert tokens == ["0", "9", "9"]


@pytest.mark.parametrize(
    ("sends_draft", "page_size", "expected"),
    [(False, 4, ["cached", "new"]), (True, 4, ["new", "cached"]), (False, 16, ["new", "cached"])],
    ids=["same KV", "with the draft", "in larger pages"],
)
def test_the_prompt_that_finds_most_is_first_by_what_its_prefill_worker_sends(
    sends_draft: bool, page_size: int, expected: list[str]
) -> None:
    """Two pages of four tokens are cached, without KV of the draft."""
    planner, _ = make(lookahead=1, caches=True)
    assigns = {name: Assign(name, 0, (token,) * 10, greedy(5), 1, None) for name, token in (("new", 1), ("cached", 2))}
    before = make_req(assigns["cached"].prompt_ids)
    key = CacheKey(packed(before.prompt_ids), "")
    assert planner.admit([before], before.prompt_len, key=key, grows=True, has_draft=False)
    planner.kv_manager.keep(before.held, key)

    ours, address = planner.layout, WorkerAddress("p", 7)
    theirs = replace(ours, page_size=page_size, groups=ours.groups[: len(ours.groups) if sends_draft else 1])
    peer = PrefillPeer(address, 0.0, layout=theirs)
    peers: Any = SimpleNamespace(by_instance={7: peer}, takes_jobs=lambda _: True)
    receiver: Any = SimpleNamespace(reserve=lambda *_, **__: None)
    requests = Requests(planner, receiver, peers, 1, Policies(schedule_policy="lpm"))
    for number, assign in enumerate(assigns.values()):
        requests.add(assign, address, number / 10)
    admitted = requests.admit(1.0)
    assert [request.assign.request_id for request in admitted] == expected
    found = {request.assign.request_id: request.start for request in admitted}
    assert found == {"new": 0, "cached": 8 if expected[0] == "cached" else 0}
