"""The planner, with an executor that only remembers: what is sent, what is counted, what becomes of results."""

import pytest

from protocol.messages_gateway import FinishReason
from scheduler.plan import Chunk, Join, LayerWritten, MaskReady, Plan, StepResult
from scheduler.planning.chunks import ExtendChunk
from scheduler.planning.req import Req
from tests.scheduler.building import admitted, greedy, grow, make_req, prompt_chunk
from tests.scheduler.remembering import draw_of, finish, grant_of, make

# ---- plans ----


def test_one_request_from_its_prompt_to_its_end() -> None:
    planner, executor = make()
    req = admitted(planner, tuple(range(10)), greedy(3, min_tokens=2))
    drawn = draw_of(req, until=12)
    planner.launch(prompt_chunk(req, 0, 7), ships=True)
    assert executor.plan == Plan(
        1, grants=(grant_of(req),), chunks=(Chunk(req.held.row, 0, tuple(range(7))),), ships=True
    )
    assert (req.num_computed, req.num_sampled) == (7, 0)

    planner.launch(prompt_chunk(req, 7), relay=False)
    assert executor.plan == Plan(2, chunks=(Chunk(req.held.row, 7, (7, 8, 9), (drawn,)),), relay=False)
    assert (req.num_computed, req.num_sampled) == (10, 1)

    planner.join([req])
    assert planner.roster.num_going_on == 1
    launched = planner.launch((), planner.decodes())
    assert executor.plan == Plan(3, num_decodes=1, joins=(Join(drawn, 10, None, begins=True),))
    assert (launched.ticket, launched.decodes, launched.reqs) == (3, (req,), [req])
    planner.launch((), planner.decodes())
    assert executor.plan == Plan(4, num_decodes=1)  # nothing has changed, and nothing of the batch is sent
    assert req.num_sampled == 3 and planner.num_launches == 4

    assert planner.decodes() == ()  # its last output is in flight
    planner.launch((), planner.decodes())
    assert executor.plan == Plan(5, leaves=(req.held.row,))
    planner.launch()
    assert executor.plan == Plan(6)
    assert [launched.ticket for launched in planner.in_flight] == [1, 2, 3, 4, 5, 6]


def test_a_chunk_draws_choices_and_those_without_a_row_are_drawn_at_the_prompts() -> None:
    planner, executor = make()
    reqs = [make_req((1, 2, 3, 4, 5), greedy(4), choice) for choice in range(3)]
    assert planner.admit(reqs[:2], 9)
    planner.launch([ExtendChunk(reqs[0], 0, 5, tuple(reqs), to_host=True)])
    (chunk,) = executor.plan.chunks
    first, second = reqs[0].held, reqs[1].held
    assert [(draw.row, draw.owner_number, draw.choice) for draw in chunk.draws] == [
        (first.row, first.owner_number, 0),
        (second.row, second.owner_number, 1),
        (first.row, first.owner_number, 2),
    ]
    assert chunk.host_from == 0 and chunk.end == 5
    assert [req.num_sampled for req in reqs] == [1, 1, 1]


def test_a_choice_joins_with_the_token_that_the_host_knows() -> None:
    """Of a request from elsewhere, and of one that goes on after an attempt that was lost."""
    planner, executor = make()
    new, again = make_req((1, 2, 3), greedy(8)), Req("again", 1, 0, (1, 2, 3, 40, 41), greedy(8, min_tokens=5), 2)
    for req in (new, again):
        assert planner.admit([req], 12)
        req.num_sampled += 1
        req.append((50,))
    planner.join([new, again])
    planner.launch((), planner.decodes())
    assert executor.plan.joins == (
        Join(draw_of(new, 3), 3, 50, begins=True),
        Join(draw_of(again, 3 + 5), 5, 50, begins=True),
    )
    assert [new.num_written, again.num_written] == [4, 6]


def test_a_request_without_a_row_cannot_decode() -> None:
    planner, _ = make()
    req = make_req()
    planner.join([req])
    with pytest.raises(AssertionError, match="holds no row and no pages"):
        planner.launch((), planner.decodes())


def test_a_row_may_leave_for_its_former_owner_and_join_for_its_next_in_one_plan() -> None:
    planner, executor = make(max_requests=1)
    old = admitted(planner, (1,), name="old")
    old.num_sampled = 1
    planner.join([old])
    planner.launch((), planner.decodes())
    finish(planner, executor)
    old.finish = FinishReason.STOP
    planner.release(old)
    planner.collect()
    new = admitted(planner, (2,), name="new")
    new.num_sampled = 1
    new.append((9,))
    planner.join([new])
    planner.launch((), planner.decodes())
    assert executor.plan == Plan(
        2, num_decodes=1, grants=(grant_of(new),), leaves=(1,), joins=(Join(draw_of(new, 1), 1, 9, begins=True),)
    )
    assert (new.held.row, new.held.owner_number) == (1, 2)


# ---- grants: exactly the pages that the executor does not know ----


def test_pages_are_sent_with_the_first_chunk_or_with_the_join_and_once() -> None:
    planner, executor = make()
    first, second = make_req((1, 2, 3, 4, 5), greedy(4)), make_req((1, 2, 3, 4, 5), greedy(4), choice=1)
    assert planner.admit([first, second], 9)
    assert first.held.num_granted == 0
    planner.launch(prompt_chunk(first, 0, 2))
    assert executor.plan.grants == (grant_of(first),)
    planner.launch([ExtendChunk(first, 2, 5, (first, second))])
    assert executor.plan.grants == ()
    planner.join([first, second])
    planner.launch((), planner.decodes())
    assert executor.plan.grants == (grant_of(second),)  # of its own row, shared pages too
    assert grant_of(second).pages[0] == grant_of(first).pages[0] and grant_of(second).row != grant_of(first).row
    planner.launch((), planner.decodes())
    assert executor.plan.grants == ()
    assert first.held.num_granted == second.held.num_granted == 3


def test_a_context_that_grows_sends_what_was_added_for_its_row() -> None:
    planner, executor = make()
    reqs = [make_req((1, 2, 3), greedy(30), name=f"r{index}") for index in range(2)]
    for req in reqs:
        assert planner.admit([req], 3)
    planner.launch([chunk for req in reqs for chunk in prompt_chunk(req)])
    planner.join(reqs)
    planner.launch((), planner.decodes())  # in flight, as all that follow

    assert grow(planner, reqs[1], 4) and grow(planner, reqs[1], 13)  # nothing, then three pages
    planner.launch((), planner.decodes())
    assert executor.plan.grants == (grant_of(reqs[1], 1),) and len(grant_of(reqs[1], 1).pages) == 3
    assert grow(planner, reqs[0], 5)
    assert grow(planner, reqs[1], 17)
    assert grow(planner, reqs[0], 9)
    planner.launch((), planner.decodes())
    assert executor.plan.grants == (grant_of(reqs[0], 1, 2), grant_of(reqs[1], 4), grant_of(reqs[0], 2))
    planner.launch((), planner.decodes())
    assert executor.plan.grants == ()


def test_a_pending_grant_of_somebody_who_has_left_does_no_harm() -> None:
    """The next owner's pages come behind it, for the same row."""
    planner, executor = make(max_requests=1)
    old = make_req((1, 2, 3), greedy(30))
    assert planner.admit([old], 3)
    planner.launch(prompt_chunk(old))
    finish(planner, executor)
    assert grow(planner, old, 9)
    pending = grant_of(old, 1)
    planner.release(old)
    planner.collect()
    new = admitted(planner, (7, 8), greedy(2), name="new")
    planner.launch(prompt_chunk(new))
    assert executor.plan.grants == (pending, grant_of(new))
    assert (pending.row, pending.owner_number + 1) == (new.held.row, new.held.owner_number)


# ---- results ----


def test_layers_go_to_their_launch_and_results_come_in_order() -> None:
    planner, executor = make()
    first, second = planner.launch(), planner.launch()
    executor.outcomes += [LayerWritten(first.ticket, 0), LayerWritten(second.ticket, 0), LayerWritten(first.ticket, 1)]
    assert planner.poll() == []
    assert (list(first.layers), list(second.layers)) == ([0, 1], [0])
    results = [StepResult(first.ticket, (), (), computed_at=1.5), StepResult(second.ticket, (), (), error="broken")]
    executor.outcomes += results
    seen: list[object] = []
    planner.speculation.over = lambda *told: seen.append(told)  # type: ignore[method-assign]
    assert planner.poll() == [(first, results[0]), (second, results[1])]
    assert seen == [(first.decodes, first.kind, 1.5), ((), second.kind, None)]
    assert (first.computed_at, second.computed_at) == (1.5, None)
    assert not planner.in_flight

    planner.launch()
    newest = planner.launch()
    executor.outcomes.append(StepResult(newest.ticket, (), ()))
    with pytest.raises(AssertionError):
        planner.poll()


def test_a_late_row_that_gets_a_page_stays_out() -> None:
    planner, executor = make(num_pages=8)
    req = make_req((1, 2, 3), greedy(20))
    assert planner.admit([req], 4, grows=True)
    planner.launch(prompt_chunk(req))
    planner.join([req])
    planner.launch((), planner.decodes())
    req.num_sampled += 2  # as if launches had drawn more, so that its pages run out while it sits out
    planner.sit_out([req])
    num_pages = len(req.held.pages)
    while len(req.held.pages) == num_pages:
        assert planner.make_room() == []
        assert planner.decodes() == ()
        planner.launch((), planner.decodes())
        planner._growth.launched()  # others decode
    assert planner.decodes() == () and req in planner.late
    planner.late.ask([])
    executor.outcomes.append(MaskReady(*req.held.owner))
    planner.poll()
    assert planner.decodes() == (req,)
