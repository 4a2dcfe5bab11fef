"""Plans for steps that other ranks of the group have announced: those without rows, and whom they leave alone."""

from typing import Any

import pytest

from protocol.messages_group import StepShape
from scheduler.plan import Join, Plan
from scheduler.planning.planner import Planner
from tests.scheduler.building import admitted, greedy, make_req, prompt_chunk
from tests.scheduler.grouped import OTHERS, Answered
from tests.scheduler.remembering import Remembers, draw_of, finish, make


def grouped(**options: Any) -> tuple[Planner, Remembers, Answered]:
    """A planner of rank 0, its executor, and what it agrees on with the other rank."""
    planner, executor = make(**options)
    planner.steps.agreement = agreement = Answered()
    return planner, executor, agreement


def test_it_launches_nothing_only_if_others_wait() -> None:
    planner, executor, agreement = grouped()
    assert not planner.launch_idle_batch() and executor.sent == []
    agreement.call()
    assert planner.launch_idle_batch() and executor.sent == [Plan(1, step=StepShape(1, (0, OTHERS)))]
    assert not planner.launch_idle_batch()
    assert (planner.num_launches, planner.num_idle, planner.counters["idle_launches"]) == (1, 1, 1)
    (launched,) = planner.in_flight
    assert launched.reqs == [] and launched.num_steps == 0


def test_a_worker_without_a_group_is_never_called() -> None:
    planner, executor = make()
    planner.launch()
    assert not planner.launch_idle_batch() and executor.sent == [Plan(1)]


def test_a_plan_with_rows_answers_as_well() -> None:
    planner, executor, agreement = grouped()
    req = admitted(planner)
    agreement.call()
    planner.launch(prompt_chunk(req))
    assert not planner.launch_idle_batch() and planner.num_idle == 0
    assert executor.plan.step == StepShape(1, (3, OTHERS))


@pytest.mark.parametrize("lookahead", [0, 1])
def test_choices_that_sit_out_come_back(lookahead: int) -> None:
    """Whoever has no page sits out; the rank is called meanwhile, again and again. It is not forgotten."""
    planner, executor, agreement = grouped(num_pages=12, lookahead=lookahead)
    req, hog = make_req((1, 2, 3, 4), greedy(20)), make_req((5,) * 4, greedy(20), name="hog")
    assert planner.admit([req], 8 + 8 * lookahead, grows=True)
    assert planner.admit([hog], 4 * planner.kv_manager.pages.num_free)
    planner.launch(prompt_chunk(req))
    planner.join([req])
    while True:
        finish(planner, executor)
        req.append((9,))
        assert planner.make_room() == []
        if not (decodes := planner.decodes()):
            break
        planner.launch(decodes=decodes)

    assert planner._growth.out_of_pages == [req] and len(req.outputs) > 2
    for idle in (1, 2, 3):
        agreement.call()
        assert planner.launch_idle_batch() and planner.num_idle == idle
        leaves = (req.held.row,) if idle == 1 else ()
        step = StepShape(planner.num_launches, (0, OTHERS))
        assert executor.plan == Plan(executor.plan.ticket, leaves=leaves, step=step)
        finish(planner, executor)
        assert planner.make_room() == [] and planner.decodes() == () and planner._growth.out_of_pages == [req]

    planner.release(hog)
    planner.collect()
    assert planner.make_room() == [] and planner.decodes() == (req,)
    planner.launch(decodes=(req,))
    (join,) = executor.plan.joins
    assert join == Join(draw_of(req, until=4), 4 + len(req.outputs) - 1, 9)
    assert executor.plan.num_decodes == 1 and not planner._growth.out_of_pages
