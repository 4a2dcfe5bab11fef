"""Rows whose masks are late: when their masks are asked for, and for whom an answer is."""

from dataclasses import replace

from scheduler.plan import DropMask, MakeMask, MaskReady
from scheduler.planning.kv_manager import Holding
from scheduler.planning.late import LateRows, Replays
from scheduler.planning.launched import Launched
from scheduler.planning.req import Req
from tests.scheduler.building import greedy, make_req

Sent = list[MakeMask | DropMask]


def asked(sent: Sent) -> list[tuple[int, int]]:
    """The owners whose masks are to be made."""
    return [(operation.draw.row, operation.draw.owner_number) for operation in sent if isinstance(operation, MakeMask)]


def decoding(row: int, owner_number: int = 1) -> Req:
    """A choice with two outputs, of which another is in flight."""
    req = make_req(sampling=greedy(50), name=f"r{row}")
    req.outputs, req.num_sampled = [7, 8], 3
    req.holding = Holding(row, owner_number, [row], 99)
    return req


def test_a_mask_is_asked_for_once_and_only_when_no_launch_has_the_row() -> None:
    sent: Sent = []
    late, req = LateRows(sent.append), decoding(4, 2)
    in_flight = [Launched(1, (), (req,))]
    late.add([req])
    assert late and late.reqs == [req] and req.num_sampled == 2
    late.ask(in_flight)
    assert not sent
    late.ask([Launched(2, (), (decoding(5),))])
    late.ask([])
    assert asked(sent) == [(4, 2)]


def test_each_launch_without_a_token_is_counted_back() -> None:
    late, req = LateRows(lambda operation: None), decoding(1)
    req.num_sampled = 4
    late.add([req])
    late.add([req])
    assert late.reqs == [req] and req.num_sampled == 2


def test_a_mask_is_for_the_owner_who_asked() -> None:
    late, req = LateRows(lambda operation: None), decoding(4, 2)
    late.add([req])
    late.ask([])
    assert late.ready(MaskReady(4, 1)) == [] and late.ready(MaskReady(3, 2)) == []
    assert late.ready(MaskReady(4, 2)) == [req] and not late
    assert late.ready(MaskReady(4, 2)) == []
    assert late.num_ready == 4, "each wakes the loop"


def test_one_that_gives_its_row_back_is_forgotten() -> None:
    sent: Sent = []
    late, gone, stays = LateRows(sent.append), decoding(1), decoding(2)
    late.add([gone, stays])
    late.forget(gone)
    late.ask([])
    assert late.reqs == [stays] and stays in late and gone not in late
    assert asked(sent) == [(2, 1)] and len(sent) == 1, "nobody was asked for the one that is gone"
    late.forget(stays)
    assert sent[1:] == [DropMask(2, 1)]
    assert late.ready(MaskReady(2, 1)) == [] and not late


def replaying(row: int, owner_number: int = 1, num_replayed: int = 2) -> Req:
    """A choice that was admitted, whose prompt ends with outputs of an earlier attempt."""
    params = replace(greedy(50), grammar="g")
    req = Req(f"r{row}", 1, 0, (1, 2, 7, 8), params, num_replayed)
    req.holding = Holding(row, owner_number, [row], 99)
    return req


def test_outputs_of_an_earlier_attempt_are_read_before_the_prompt_is_computed() -> None:
    sent: Sent = []
    replays, req = Replays(sent.append), replaying(4, 2)
    replays.begin(req)
    assert req in replays and asked(sent) == [(4, 2)]
    assert isinstance(sent[0], MakeMask) and sent[0].draw.outputs == (7, 8)
    replays.ready(MaskReady(4, 1))
    replays.ready(MaskReady(3, 2))
    assert req in replays
    replays.ready(MaskReady(4, 2))
    assert req not in replays and len(sent) == 1
    replays.forget(req)
    assert len(sent) == 1


def test_what_begins_anew_or_has_no_grammar_waits_for_nothing() -> None:
    sent: Sent = []
    replays, plain = Replays(sent.append), replaying(1)
    plain.sampling = greedy(50)
    for req in (plain, replaying(2, num_replayed=0)):
        replays.begin(req)
        assert req not in replays
    assert not sent


def test_a_replay_whose_client_leaves_is_dropped() -> None:
    sent: Sent = []
    replays, req = Replays(sent.append), replaying(4, 2)
    replays.begin(req)
    replays.forget(req)
    assert req not in replays and sent[1:] == [DropMask(4, 2)]
