"""Who decodes, and what a plan changes about it. No planner, no executor."""

from protocol.messages_gateway import FinishReason
from scheduler.planning.kv_manager import Holding
from scheduler.planning.req import Req
from scheduler.planning.roster import Roster
from tests.scheduler.building import greedy, make_req


def seated(*names: str, num_tokens: int = 8) -> list[Req]:
    """Choices with the rows 1, 2, ..., that have drawn a token."""
    reqs = [make_req(sampling=greedy(num_tokens), name=name) for name in names]
    for row, req in enumerate(reqs, 1):
        req.holding, req.num_sampled = Holding(row, 1, [row], 9), 1
    return reqs


def decoding(reqs: list[Req]) -> Roster:
    roster = Roster()
    roster.join(reqs)
    assert roster.change(roster.next(()), ()) == ((), reqs)
    return roster


def test_those_that_join_come_behind_those_that_decode() -> None:
    a, b, c = seated("a", "b", "c")
    roster = decoding([a, b])
    roster.join([c])
    assert roster.next(()) == (a, b, c)
    assert roster.change((a, b, c), ()) == ((), [c])
    assert roster.next(()) is roster.decoding, "nothing changes, so nothing is looked at"
    assert roster.change(roster.decoding, ()) == ((), [])


def test_an_ended_choice_and_one_whose_last_output_is_in_flight_leave() -> None:
    a, b, c = seated("a", "b", "c")
    roster = decoding([a, b, c])
    a.finish, b.num_sampled = FinishReason.STOP, 8
    assert roster.num_going_on == 2
    assert roster.next(()) == (c,)
    assert roster.change((c,), ()) == ((1, 2), [])


def test_a_choice_without_a_page_sits_out_and_joins_again() -> None:
    a, b = seated("a", "b")
    roster = decoding([a, b])
    assert roster.next([a]) == (b,)
    assert roster.change((b,), ()) == ((1,), [])
    roster.stay(b)
    roster.stay(a)
    roster.stay(a)
    assert roster.joining == [a]
    assert roster.change(roster.next(()), ()) == ((), [a])


def test_choices_that_rest_leave_their_rows_and_join_the_next_launch() -> None:
    a, b = seated("a", "b")
    roster = decoding([a, b])
    assert roster.change((), (a, b)) == ((1, 2), [])
    assert roster.next(()) == (a, b)
    assert roster.change((a, b), ()) == ((), [a, b])


def test_the_row_of_a_choice_that_goes_to_host_memory_leaves_once_with_the_next_plan() -> None:
    a, b, c = seated("a", "b", "c")
    roster = decoding([a, b])
    roster.join([c])
    roster.remove(a)
    roster.remove(c)
    assert roster.next(()) == (b,) == roster.decoding
    assert roster.change(roster.next(()), ()) == ((1,), [])
    assert roster.change(roster.next(()), ()) == ((), [])
