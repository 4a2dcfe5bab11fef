"""What reaches the executor and when: each plan with the step that all ranks have announced, and nothing before it."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages_group import StepRow, StepShape
from scheduler.agreement import Agreement
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.plan import Chunk, CopyPages, Done, Operation, Plan
from scheduler.planning.steps import Steps
from tests.scheduler.remembering import make


def steps_of(size: int, shape: DraftShape = NO_DRAFT, max_graphed: int = 0) -> tuple[Steps, Agreement, list[Operation]]:
    """Those of rank 0, and what the executor has got."""
    sent: list[Operation] = []
    agreement = Agreement(1, 0, size)
    return Steps(sent.append, agreement, shape, max_graphed), agreement, sent


def copy(ticket: int) -> CopyPages:
    return CopyPages(ticket, (1,), (2,))


def test_a_worker_without_a_group_asks_nobody() -> None:
    sent: list[Operation] = []
    steps = Steps(sent.append, None, NO_DRAFT)
    for operation in (Plan(1), copy(2), Plan(3)):
        steps.submit(operation)
    steps.go_on()
    assert sent == [Plan(1), copy(2), Plan(3)] and not steps.is_called


def test_it_is_called_until_it_has_a_plan() -> None:
    steps, agreement, _ = steps_of(2)
    assert not steps.is_called
    agreement.take(StepRow(1, 1, 1, 3))
    assert steps.is_called
    steps.submit(Plan(1))
    assert not steps.is_called


CHAIN, TREE = DraftShape(3), DraftShape(3, 2, 7)


@pytest.mark.parametrize(
    ("shape", "num_steps", "num_tokens"),
    [(NO_DRAFT, 0, 2), (CHAIN, 0, 2), (CHAIN, 1, 4), (CHAIN, 3, 8), (TREE, 0, 2), (TREE, 2, 14), (TREE, 3, 14)],
)
@pytest.mark.parametrize("num_chunks", [0, 2])
def test_a_row_announces_what_the_target_computes(
    shape: DraftShape, num_steps: int, num_tokens: int, num_chunks: int
) -> None:
    """Two rows that decode, and chunks of five tokens."""
    steps, agreement, sent = steps_of(2, shape, max_graphed=200)
    chunks = tuple(Chunk(3 + number, 0, (1, 2, 3, 4, 5)) for number in range(num_chunks))
    steps.submit(Plan(1, num_decodes=2, chunks=chunks, num_steps=num_steps))
    assert agreement.outgoing == [StepRow(1, 1, 0, num_tokens + 5 * num_chunks, wants_graph=True)] and not sent


@pytest.mark.parametrize(("num_rows", "has_chunk", "wanted"), [(4, False, True), (5, False, False), (129, True, False)])
def test_it_wants_a_graph_where_one_is_large_enough(num_rows: int, has_chunk: bool, wanted: bool) -> None:
    steps, agreement, _ = steps_of(2, max_graphed=1000 if has_chunk else 4)
    steps.submit(Plan(1, num_decodes=num_rows, chunks=(Chunk(1, 0, ()),) if has_chunk else ()))
    assert agreement.outgoing[0].wants_graph == wanted


@given(st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_order_of_rows_gives_the_executor_all_operations_in_theirs(size: int, rng: random.Random) -> None:
    """Whatever comes when: operations keep their order, steps are counted up, and each has the tokens of all ranks."""
    steps, agreement, sent = steps_of(size)
    submitted: list[Operation] = []
    rows = dict.fromkeys(range(1, size), 0)  # how many have come
    tokens: dict[tuple[int, int], int] = {}  # by step and rank

    def submit() -> None:
        num_rows, ticket = rng.randrange(3), len(submitted) + 1
        operation: Operation = Plan(ticket, num_decodes=num_rows) if rng.random() < 0.6 else copy(ticket)
        submitted.append(operation)
        steps.submit(operation)

    def hear(rank: int) -> Callable[[], None]:
        def heard() -> None:
            rows[rank] += 1
            tokens[rows[rank], rank] = num_tokens = rng.randrange(9)
            agreement.take(StepRow(1, rows[rank], rank, num_tokens))
            steps.go_on()

        return heard

    for _ in range(60):
        may_come = [rank for rank, count in rows.items() if count < agreement.step]
        rng.choice([submit, *map(hear, may_come)])()
    while len(sent) < len(submitted):
        rank = min(rows, key=rows.__getitem__)
        hear(rank)()

    without_steps = [replace(operation, step=None) if isinstance(operation, Plan) else operation for operation in sent]
    assert without_steps == submitted
    plans = [operation for operation in sent if isinstance(operation, Plan)]
    for number, plan in enumerate(plans, start=1):
        others = [tokens[number, rank] for rank in range(1, size)]
        assert plan.step is not None and plan.step[:2] == (number, (plan.num_decodes, *others))


def test_what_a_planner_copies_waits_behind_its_plan_too() -> None:
    """And is over only when the executor has got it."""
    planner, executor = make()
    planner.steps.agreement = agreement = Agreement(1, 0, 2)
    planner.launch()
    planner.copies.submit(copy)
    assert executor.sent == [] and planner.poll() == []
    agreement.take(StepRow(1, 1, 1, 4))
    assert planner.poll() == [], "its rows are read before the executor is asked"
    assert executor.sent == [Plan(1, step=StepShape(1, (0, 4))), copy(2)]
    executor.outcomes = [Done(2)]
    planner.poll()
    assert planner.copies.oldest > 2
