"""A launch without rows in every draft mode, as a rank computes it while others have work."""

from typing import Any

import pytest
import torch

from model.paged_kv import PagedKv
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.executor import Executor
from scheduler.execution.streams import InlineStream, Stream
from scheduler.plan import Outcome, Plan, StepResult
from scheduler.planning.speculation import Speculation
from scheduler.speculation.draft_launches import DraftLaunches
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import ManualStream, decode, make_executor, make_planner
from tests.scheduler.grouped import OTHERS, Answered, Counting, fill, futures_of, of_ticket, pages_of, steps_of
from tests.scheduler.speculating import MODEL, PROMPT, STEPS, begun, stepping, take

SHAPES = {
    "no draft": (0, NO_DRAFT),
    "chain": (1, DraftShape(STEPS)),
    "tree": (1, DraftShape(STEPS, 2, 7)),
    "layers": (3, DraftShape(STEPS)),
}
DRAFTS = [draft for draft in SHAPES if draft != "no draft"]
drafts = pytest.mark.parametrize("draft", DRAFTS)


def rank(counting: Counting, draft: str, stream: Stream) -> Executor:
    num_layers, shape = SHAPES[draft]
    more: dict[str, Any] = {"draft_seed": 1, "num_draft_layers": num_layers} if num_layers else {}
    runner = FakeRunner(vocab_size=97, context_length=64, before_forward=counting, **more)
    kv, clock = PagedKv(runner.kv_layout(4), 64), VirtualClock(7.0)
    return make_executor(stream, runner=runner, kv=kv, shape=shape, forward_clock=clock)


@pytest.mark.parametrize(
    "draft,num_steps,size",
    [*(("no draft", 0, size) for size in (1, 2, 4)), *((draft, steps, 2) for draft in DRAFTS for steps in (0, STEPS))],
)
@pytest.mark.parametrize("relay", [False, True])
def test_it_is_one_forward_and_touches_nothing(relay: bool, draft: str, num_steps: int, size: int) -> None:
    """Nor does the draft."""
    counting = Counting(size=size)
    executor = rank(counting, draft, InlineStream())
    fill(executor.kv)
    pages, futures = pages_of(executor.kv), futures_of(executor)
    outcomes: list[Outcome] = []
    steps = steps_of(executor, size, SHAPES[draft][1])
    for ticket in (1, 2, 3):
        steps.submit(Plan(ticket, relay=relay, num_steps=num_steps))
        outcomes += executor.poll()

    assert of_ticket(outcomes, 1) == [StepResult(1, (), (), computed_at=7.0)]
    assert not any(result.error for result in outcomes if isinstance(result, StepResult))
    assert torch.equal(pages_of(executor.kv), pages)
    assert not executor.page_table.req_to_page.any() and not executor.page_table.req_to_page_cpu.any()
    counting.expect(3)
    padded = OTHERS if size > 1 else 0
    assert {shape for _, _, shape in counting.entered} == {(padded, 1), (size, padded, 1)}
    if draft in DRAFTS:
        executor.future_map._publish_ready = None  # the event behind the newest publish, which had no rows
    assert futures_of(executor) == futures and executor.device.group_error is None


@drafts
def test_nothing_gathers_while_a_rank_is_idle(draft: str) -> None:
    """No launch writes what the draft puts off, and none needs to."""
    executor = rank(Counting(), draft, InlineStream())
    steps = steps_of(executor, shape=SHAPES[draft][1])
    for ticket in range(1, 60):
        steps.submit(Plan(ticket))
        executor.poll()
    assert isinstance(executor.launcher, DraftLaunches)
    assert executor.launcher._unwritten._tokens == [] and not executor.future_map._seeds


@drafts
@pytest.mark.parametrize("num_steps", [(STEPS,), (0,), (0, STEPS), (STEPS, 0), (STEPS, 0, 0)])
def test_between_launches_with_rows_it_changes_no_token(
    monkeypatch: pytest.MonkeyPatch, num_steps: tuple[int, ...], draft: str
) -> None:
    """Everybody leaves for a launch, and comes back: with the proposals that were left."""
    kept = []
    for has_idle in (False, True):
        counting = Counting()
        executor = rank(counting, draft, ManualStream())
        planner = make_planner(executor, speculation=Speculation(SHAPES[draft][1], 9), agreement=Answered())
        stepping(monkeypatch, planner, *num_steps)
        req, num_idle = begun(planner), 0
        take(planner, executor)
        runs = []
        while len(req.outputs) < 24:
            decode(planner)
            take(planner, executor)
            runs.append(len(req.outputs))
            if has_idle:
                planner.launch()
                planner.roster.stay(req)
                take(planner, executor)
                num_idle += 1
        assert req.outputs == MODEL.expected_tokens(PROMPT, 30)[: len(req.outputs)]
        counting.expect(1 + len(runs) + num_idle)
        kept.append(runs)
    assert kept[0] == kept[1]
