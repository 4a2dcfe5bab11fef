"""The planner reads a result: it finds the choices of the tokens, counts proposals, and drops repeated outputs."""

from scheduler.draft_shape import DraftShape
from scheduler.plan import StepResult
from scheduler.planning.kv_copies import KvCopies
from scheduler.planning.kv_manager import Holding, KvManager
from scheduler.planning.launched import Launched, Results
from scheduler.planning.req import Req
from scheduler.planning.speculation import Speculation
from scheduler.planning.spills import Spills
from tests.scheduler.building import make_req, prompt_chunk


def seated(row: int, name: str, *, has_draft: bool = True) -> Req:
    req = make_req(name=name)
    req.holding = Holding(row, 1, [row], 9, has_draft=has_draft)
    return req


def results_of(*reqs: Req) -> tuple[Results, Spills, Speculation]:
    kv_manager = KvManager(9, 4, max_requests=4, max_context=64)
    spills, speculation = Spills(kv_manager, KvCopies(kv_manager, print), None), Speculation(DraftShape(3), 9)
    results = Results(speculation, spills)
    for req in reqs:
        results.seated(req)
    return results, spills, speculation


def test_a_row_that_was_given_away_draws_for_nobody() -> None:
    a, b = seated(1, "a"), seated(2, "b")
    results, *_ = results_of(a, b)
    rows = [a.held.owner, b.held.owner]
    assert results.drawn(rows, [(5,), (6,)]) == [(a, (5,)), (b, (6,))]
    results.unseated(a)
    assert results.drawn(rows, [(5,), (6,)]) == [(b, (6,))]
    assert results.holders([*rows, (2, 7)]) == [b]


def test_proposals_count_for_rows_that_decode_with_a_draft() -> None:
    a, blind, prompt = seated(1, "a"), seated(2, "blind", has_draft=False), seated(3, "prompt")
    results, _, speculation = results_of(a, blind, prompt)
    launched = Launched(1, tuple(prompt_chunk(prompt)), (a, blind), num_steps=3)
    rows = tuple(req.held.owner for req in (prompt, a, blind))
    assert len(results.take(launched, StepResult(1, rows, ((4,), (5, 6, 7), (8,))))) == 3
    assert speculation.proposed == [1, 1, 1] and speculation.accepted == [1, 1, 0]


def test_outputs_that_are_drawn_once_more_are_left_out_once_and_count_as_kept_proposals() -> None:
    a, b = seated(1, "a"), seated(2, "b")
    results, spills, speculation = results_of(a, b)
    a.outputs, a.num_sampled = [50, 51, 52], 2
    spills._redrawn[a] = 2
    launched, rows = Launched(1, (), (a, b), num_steps=3), (a.held.owner, b.held.owner)
    assert results.take(launched, StepResult(1, rows, ((51,), (9,)))) == [(b, (9,))]
    a.num_sampled += 1
    assert results.take(launched, StepResult(2, rows, ((52, 53), (9,)))) == [(a, (53,)), (b, (9,))]
    assert speculation.accepted == [1, 0, 0] and not spills.redraws
    a.append((53,))
    assert a.outputs == [50, 51, 52, 53] and a.num_sampled == 4


def test_progress_counts_the_outputs_of_a_prompt_and_of_those_that_decode() -> None:
    prompt, decode = seated(1, "prompt"), seated(2, "decode")
    launched = Launched(1, tuple(prompt_chunk(prompt)), (decode,))
    launched.count_progress()
    assert (prompt.num_computed, prompt.num_sampled, decode.num_sampled) == (3, 1, 1)
    assert launched.reqs == [prompt, prompt, decode]
