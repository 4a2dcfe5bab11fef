"""Workers that are told to end, as the gateway lets them go: what they have begun ends there, others get the rest."""

import logging

import pytest

from gateway.routing.members import Stage, WorkerKey
from protocol.errors import Unavailable, WorkerLeft
from protocol.messages_gateway import (
    Assign,
    CancelRequest,
    ChoiceTokens,
    FirstToken,
    Heartbeat,
    Leave,
    Leaving,
    Left,
    PeerLost,
    Refused,
    RequestFailed,
    Role,
    Tokens,
    WorkerAddress,
)
from protocol.messages_group import GroupPlace
from tests.gateway.control_bench import ControlBench
from tests.gateway.worker_ends import STATS, register


def told(bench: ControlBench, worker_id: str, kind: type) -> list[object]:
    return [message for to, message in bench.sent if to == worker_id and isinstance(message, kind)]


def leaves(bench: ControlBench, worker_id: str) -> None:
    bench.say(worker_id, Leaving(worker_id, 1))


def left(bench: ControlBench, worker_id: str) -> None:
    bench.say(worker_id, Left(worker_id, 1))


def pairs(*worker_ids: str) -> ControlBench:
    """Workers by the first letter of their ids: prefill or decode."""
    bench = ControlBench()
    for worker_id in worker_ids:
        bench.say(worker_id, register(worker_id, 1, Role.PREFILL if worker_id[0] == "p" else Role.DECODE))
    return bench


def first_token(bench: ControlBench, assign: Assign, by: str, token_id: int = 7) -> None:
    bench.say(by, FirstToken((ChoiceTokens(assign.request_id, assign.attempt, 0, 0, (token_id,)),)))


def retries(bench: ControlBench) -> dict[str, int]:
    return {code: count for code, count in bench.dispatch.retries.counts.items() if count}


def test_a_worker_that_has_nothing_may_leave_at_once() -> None:
    bench = ControlBench("u0", "u1")
    leaves(bench, "u0")
    assert told(bench, "u0", Leave) == [Leave()]
    bench.control.look()
    assert told(bench, "u0", Leave) == [Leave()], "once"
    left(bench, "u0")
    assert [member.key.worker_id for member in bench.control.membership.members] == ["u1"]
    assert (bench.control.membership.num_left, bench.control.membership.num_lost) == (1, 0)
    assert told(bench, "u1", PeerLost) == [PeerLost("u0", 1, has_left=True)]


def test_what_a_leaving_worker_has_begun_ends_there_and_it_gets_nothing_new() -> None:
    bench = ControlBench("u0", "u1")
    client, assign = bench.ask()
    assert bench.sent[-1][0] == "u0"
    bench.tokens(assign, 0, 0, 5)
    leaves(bench, "u0")
    for name in ("a", "b", "c"):
        bench.ask(name)
    assert {to for to, message in bench.sent if isinstance(message, Assign) and message != assign} == {"u1"}
    bench.control.look()
    assert not told(bench, "u0", Leave) and not bench.cancels

    bench.tokens(assign, 0, 1, 6, finish="stop")
    bench.control.look()
    assert told(bench, "u0", Leave) and client.tokens == [[5, 6]]
    left(bench, "u0")
    assert retries(bench) == {}


def test_what_it_has_not_begun_moves_and_counts_as_no_attempt() -> None:
    bench = ControlBench("u0", "u1", max_attempts=1)
    client, assign = bench.ask(n=2)
    leaves(bench, "u0")
    again = bench.assigns[-1]
    assert bench.cancels == [CancelRequest("r", 0)] and again.attempt == 1 and again.num_choices == 2
    assert told(bench, "u0", Leave), "nothing needs it any more"
    bench.tokens(assign, 0, 0, 9)  # it was on its way
    for choice in range(2):
        bench.tokens(again, choice, 0, 5, 6, by="u1", finish="stop")
    assert client.tokens == [[5, 6], [5, 6]] and client.error is None
    assert retries(bench) == {"worker_left": 1}
    left(bench, "u0")
    bench.expect_rest()


def test_what_nobody_else_can_take_stays_until_it_has_ended() -> None:
    bench = ControlBench("u0")
    client, assign = bench.ask()
    leaves(bench, "u0")
    assert not bench.cancels and not told(bench, "u0", Leave)
    assert bench.control.membership.missing == "no worker is ready"
    with pytest.raises(Unavailable, match=r"^no worker is ready$"):
        bench.ask("new")
    bench.tokens(assign, 0, 0, 5, finish="stop")
    bench.control.look()
    assert told(bench, "u0", Leave) and client.tokens == [[5]]


def test_what_has_begun_and_must_begin_again_may_do_so_at_a_leaving_worker_if_there_is_no_other() -> None:
    bench = ControlBench("u0")
    client, assign = bench.ask()
    bench.tokens(assign, 0, 0, 5)
    leaves(bench, "u0")
    bench.preempt(assign)
    again = bench.assigns[-1]
    assert again.attempt == 1 and again.num_replayed == 1
    bench.tokens(again, 0, 1, 6, finish="stop")
    assert client.tokens == [[5, 6]]


def test_when_its_bound_is_over_the_rest_goes_on_elsewhere_and_nothing_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    bench = ControlBench("u0", "u1", max_attempts=1)
    client, assign = bench.ask()
    bench.tokens(assign, 0, 0, 5, 6)
    leaves(bench, "u0")
    left(bench, "u0")
    again = bench.assigns[-1]
    assert again.prompt_ids[-2:] == (5, 6) and again.num_replayed == 2 and bench.sent[-1][0] == "u1"
    bench.tokens(again, 0, 2, 7, by="u1", finish="stop")
    assert client.tokens == [[5, 6, 7]]
    assert retries(bench) == {"worker_left": 1} and bench.control.membership.num_lost == 0
    said = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert ("INFO", "worker leaves") in said and ("INFO", "worker left") in said
    assert ("INFO", "request moved") in said and not [each for each in said if each[0] == "WARNING"]


def test_without_another_worker_the_client_gets_a_clear_error() -> None:
    bench = ControlBench("u0")
    client, assign = bench.ask()
    bench.tokens(assign, 0, 0, 5)
    leaves(bench, "u0")
    left(bench, "u0")
    assert client.error is None, "one may join"
    bench.clock.advance(4.1)
    bench.control.look()
    assert isinstance(client.error, WorkerLeft)
    assert client.error.message == "unified worker 'u0' has left, and no other worker could take over in 4 s"


def test_a_worker_that_ends_unasked_or_breaks_while_it_leaves_is_lost() -> None:
    bench = ControlBench("u0", "u1", "u2")
    _, assign = bench.ask()
    bench.tokens(assign, 0, 0, 5)
    left(bench, "u1")
    assert bench.control.membership.num_lost == 1
    leaves(bench, "u0")
    bench.lose("u0")
    assert bench.control.membership.num_lost == 2 and retries(bench) == {"worker_lost": 1}


def test_a_worker_that_was_let_go_may_drop_its_connection() -> None:
    bench = ControlBench("u0")
    leaves(bench, "u0")
    bench.lose("u0")
    assert (bench.control.membership.num_left, bench.control.membership.num_lost) == (1, 0)


def test_a_prefill_worker_is_needed_until_decode_sends_tokens() -> None:
    bench = pairs("p0", "d0")
    client, assign = bench.ask()
    first_token(bench, assign, "p0")
    leaves(bench, "p0")
    bench.control.look()
    assert not told(bench, "p0", Leave), "its KV may still be on its way"
    bench.say("d0", Tokens((ChoiceTokens("r", 0, 0, 0, (7,)),)))
    bench.control.look()
    assert told(bench, "p0", Leave) and not told(bench, "d0", CancelRequest)
    left(bench, "p0")
    bench.say("d0", Tokens((ChoiceTokens("r", 0, 0, 1, (8,), "stop"),)))
    assert client.tokens == [[7, 8]] and retries(bench) == {}


def test_prompts_that_a_leaving_prefill_worker_has_not_begun_go_to_another() -> None:
    bench = pairs("p0", "d0")
    _, assign = bench.ask()
    bench.say("p1", register("p1", 1, Role.PREFILL))
    leaves(bench, "p0")
    assert told(bench, "d0", CancelRequest) == [CancelRequest("r", 0)]
    again = bench.assigns[-1]
    assert again.prefill == WorkerAddress("p1", 1) and again.attempt == 1 and assign.prefill != again.prefill
    assert told(bench, "p0", Leave)


def test_when_the_bound_of_a_prefill_worker_is_over_decode_drops_what_it_waits_for() -> None:
    bench = pairs("p0", "d0")
    client, assign = bench.ask()
    first_token(bench, assign, "p0")
    leaves(bench, "p0")
    bench.say("p1", register("p1", 1, Role.PREFILL))
    left(bench, "p0")
    assert told(bench, "d0", CancelRequest) == [CancelRequest("r", 0)]
    bench.say("d0", RequestFailed("r", 0, "worker_lost", "it has heard of it, too"))
    again = bench.assigns[-1]
    assert again.attempt == 1 and again.num_replayed == 1 and again.prefill == WorkerAddress("p1", 1)
    bench.say("d0", Tokens((ChoiceTokens("r", 1, 0, 1, (8,), "stop"),)))
    assert client.tokens == [[7, 8]] and retries(bench) == {"worker_left": 1}


def group_of(bench: ControlBench, size: int) -> None:
    for rank in range(size):
        place = GroupPlace("g", 1, rank, size)
        bench.say(f"g.{rank}", register(f"g.{rank}", 1, Role.UNIFIED, backend="", place=place))


def test_a_group_leaves_as_one(caplog: pytest.LogCaptureFixture) -> None:
    bench = ControlBench()
    caplog.set_level(logging.INFO)
    group_of(bench, 2)
    _, assign = bench.ask()
    busy = bench.sent[-1][0]
    idle = "g.1" if busy == "g.0" else "g.0"
    bench.tokens(assign, 0, 0, 5, by=busy)
    bench.join("u0")
    leaves(bench, idle)
    assert {member.stage for member in bench.control.membership.members if member.place} == {Stage.LEAVING}
    assert not told(bench, idle, Leave), "the other one's launches need it"
    bench.ask("new")
    assert bench.sent[-1][0] == "u0"
    bench.tokens(assign, 0, 1, 6, by=busy, finish="stop")
    bench.control.look()
    assert told(bench, "g.0", Leave) == told(bench, "g.1", Leave) == [Leave()]
    left(bench, "g.0")
    assert (bench.control.membership.num_left, bench.control.membership.num_lost) == (2, 0)
    bench.say("g.1", Heartbeat("g.1", 1, STATS))
    [refused] = told(bench, "g.1", Refused)
    assert isinstance(refused, Refused) and refused.reason.startswith("its group has left: worker 'g.0' has left")
    [record] = [each for each in caplog.records if "worker refused" in each.getMessage()]
    assert record.levelno == logging.INFO, "an orderly end is no warning"


def test_who_is_no_member_is_not_let_go() -> None:
    bench = ControlBench("u0")
    assert bench.control.membership.leaving(WorkerKey("u9", 1)) == ()
    assert bench.control.membership.free(lambda _key: False).outgoing == ()
