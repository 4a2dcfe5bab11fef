"""Plans for steps that other ranks of the group have announced: those without rows, and whom they leave alone."""

import pytest

from scheduler.plan import Called, Join, Plan
from tests.scheduler.building import admitted, greedy, make_req, prompt_chunk
from tests.scheduler.remembering import Remembers, draw_of, finish, make


def call(executor: Remembers, *steps: int) -> None:
    executor.outcomes += [Called(step) for step in steps]


def test_it_launches_nothing_only_if_others_wait() -> None:
    planner, executor = make()
    assert not planner.is_called and not planner.launch_idle() and executor.sent == []
    call(executor, 1)
    assert planner.poll() == [] and planner.is_called
    assert planner.launch_idle() and executor.sent == [Plan(1)]
    assert not planner.is_called and not planner.launch_idle()
    assert (planner.num_launches, planner.num_idle, planner.counters["idle_launches"]) == (1, 1, 1)
    (launched,) = planner.in_flight
    assert launched.reqs == [] and launched.num_steps == 0


@pytest.mark.parametrize(
    ("steps", "num_planned", "is_called"),
    [
        ((1,), 0, True),
        ((1, 1, 1), 0, True),  # repeated
        ((1,), 1, False),  # planned already: the call crossed with the plan
        ((1,), 3, False),  # late
        ((1, 2), 1, True),
        ((1, 2, 3), 2, True),
        ((3,), 2, True),
        ((3, 3), 3, False),
    ],
)
def test_a_call_is_for_one_step(steps: tuple[int, ...], num_planned: int, is_called: bool) -> None:
    """One that is planned needs nothing more, however often it is called."""
    planner, executor = make()
    for _ in range(num_planned):
        planner.launch()
    call(executor, *steps)
    planner.poll()
    assert planner.is_called == is_called and planner.launch_idle() == is_called
    call(executor, *steps)
    planner.poll()
    assert not planner.launch_idle()
    assert planner.num_launches == max(num_planned, *steps) and planner.num_idle == is_called


def test_a_plan_with_rows_answers_as_well() -> None:
    planner, executor = make()
    req = admitted(planner)
    call(executor, 1)
    planner.poll()
    planner.launch(prompt_chunk(req))
    assert not planner.is_called and planner.num_idle == 0


@pytest.mark.parametrize("lookahead", [0, 1])
def test_choices_that_sit_out_come_back(lookahead: int) -> None:
    """Whoever has no page sits out; the rank is called meanwhile, again and again. It is not forgotten."""
    planner, executor = make(num_pages=12, lookahead=lookahead)
    req, hog = make_req((1, 2, 3, 4), greedy(20)), make_req((5,) * 4, greedy(20), name="hog")
    assert planner.admit([req], 8 + 8 * lookahead, grows=True)
    assert planner.admit([hog], 4 * planner.book.pages.num_free)
    planner.launch(prompt_chunk(req))
    planner.join([req])
    while True:
        finish(planner, executor)
        req.append((9,))
        assert planner.make_room() == []
        if not (decodes := planner.decodes()):
            break
        planner.launch(decodes=decodes)

    assert planner._growth.short == [req] and len(req.outputs) > 2
    for idle in (1, 2, 3):
        call(executor, planner.num_launches + 1)
        planner.poll()
        assert planner.launch_idle() and planner.num_idle == idle
        assert executor.plan == Plan(executor.plan.ticket, leaves=(req.held.row,) if idle == 1 else ())
        finish(planner, executor)
        assert planner.make_room() == [] and planner.decodes() == () and planner._growth.short == [req]

    planner.release(hog)
    planner.collect()
    assert planner.make_room() == [] and planner.decodes() == (req,)
    planner.launch(decodes=(req,))
    (join,) = executor.plan.joins
    assert join == Join(draw_of(req, until=4), 4 + len(req.outputs) - 1, 9)
    assert executor.plan.num_decodes == 1 and not planner._growth.short
