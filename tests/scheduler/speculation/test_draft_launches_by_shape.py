"""Launches without rows with real drafts, in every mode: kernels, products and heads take no tokens by their shape."""

import pytest

from model.paged_kv import PagedKv
from model.runner import DraftSource, ModelRunner
from scheduler.draft_shape import DraftShape
from scheduler.execution.executor import Executor
from scheduler.execution.streams import InlineStream
from scheduler.plan import Plan, StepResult
from scheduler.speculation.draft_launches import DraftLaunches
from scheduler.speculation.modes import launches_for
from testkit.checkpoints import make_checkpoint
from tests.drafts import add_mtp, make_draft
from worker.boot import open_streams

SHAPES = {"chain": DraftShape(3), "tree": DraftShape(3, 2, 7), "layers": DraftShape(2)}


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DraftSource]:
    """A model with two layers of its own that draft, and another draft beside it."""
    target = make_checkpoint(tmp_path_factory.mktemp("model") / "target", "qwen3")
    add_mtp(target, 2)
    eagle = DraftSource("eagle3", make_draft(target.parent / "draft", target, "eagle3"))
    return {"chain": eagle, "tree": eagle, "layers": DraftSource("mtp", target, 2)}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("mode", SHAPES)
def test_a_plan_without_rows_passes_through_whether_it_proposes_or_not(
    mode: str, device: str, drafts: dict[str, DraftSource]
) -> None:
    runner = ModelRunner.load(drafts["layers"].folder, device=device, draft=drafts[mode])
    shape, kv = SHAPES[mode], PagedKv(runner.kv_layout(4), 8, runner.device)
    forward, schedule = open_streams(runner.device, lambda: None) if device == "cuda" else (InlineStream(),) * 2
    launches = launches_for(runner.draft, shape)
    executor = Executor(runner, kv, num_rows=3, max_pages=4, forward=forward, schedule=schedule, launches=launches)
    kv.device_bytes.fill_(7)

    for ticket, num_steps in enumerate((0, shape.num_steps, shape.num_steps, 0, 0), 1):
        executor.submit(Plan(ticket, num_steps=num_steps))
        copy_done = executor.launches[-1].copy_done
        assert copy_done is not None, "the stream records the event of a launch without rows, too"
        copy_done.synchronize()
        assert executor.poll() == [StepResult(ticket, (), ())], f"a plan without rows, {num_steps} steps of the draft"

    assert isinstance(executor.launcher, DraftLaunches)
    assert executor.launcher._unwritten._tokens == [], "what launches without tokens have left to the draft"
    assert (kv.device_bytes == 7).all(), "nothing is written"
    executor.close()
