"""Rows whose masks are late: when their masks are asked for, and for whom an answer is."""

from scheduler.plan import MakeMask, MaskReady
from scheduler.planning.kv_book import Holding
from scheduler.planning.late import LateRows
from scheduler.planning.launched import Launched
from scheduler.planning.req import Req
from tests.scheduler.building import greedy, make_req


def decoding(row: int, generation: int = 1) -> Req:
    """A choice with two outputs, of which another is in flight."""
    req = make_req(sampling=greedy(50), name=f"r{row}")
    req.outputs, req.num_sampled = [7, 8], 3
    req.holding = Holding(row, generation, [row], 99)
    return req


def test_a_mask_is_asked_for_once_and_only_when_no_launch_has_the_row() -> None:
    sent: list[MakeMask] = []
    late, req = LateRows(sent.append), decoding(4, 2)
    in_flight = [Launched(1, (), (req,))]
    late.add([req])
    assert late and late.reqs == [req] and req.num_sampled == 2
    late.ask(in_flight)
    assert not sent
    late.ask([Launched(2, (), (decoding(5),))])
    late.ask([])
    assert [(each.draw.row, each.draw.generation) for each in sent] == [(4, 2)]


def test_each_launch_without_a_token_is_counted_back() -> None:
    late, req = LateRows(lambda each: None), decoding(1)
    req.num_sampled = 4
    late.add([req])
    late.add([req])
    assert late.reqs == [req] and req.num_sampled == 2


def test_a_mask_is_for_the_owner_who_asked() -> None:
    late, req = LateRows(lambda each: None), decoding(4, 2)
    late.add([req])
    late.ask([])
    assert late.ready(MaskReady(4, 1)) == [] and late.ready(MaskReady(3, 2)) == []
    assert late.ready(MaskReady(4, 2)) == [req] and not late
    assert late.ready(MaskReady(4, 2)) == []
    assert late.num_ready == 4, "each wakes the loop"


def test_one_that_gives_its_row_back_is_forgotten() -> None:
    sent: list[MakeMask] = []
    late, gone, stays = LateRows(sent.append), decoding(1), decoding(2)
    late.add([gone, stays])
    late.forget(gone)
    late.ask([])
    assert late.reqs == [stays] and len(sent) == 1
    late.forget(stays)
    assert late.ready(MaskReady(2, 1)) == [] and not late
