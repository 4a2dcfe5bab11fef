"""The step `drafts`: a worker with a draft launches as in a deployment, and its length counts what was kept."""

import pytest
import torch

from bench.gpu.segments import parts_of
from bench.gpu.shape import TINY, random_runner
from bench.gpu.step_drafts import SHAPES, STORY, held_out, mean_length, started
from bench.step.costs import measure_costs
from bench.step.decoding import PAGE_SIZE, Decoding
from model.eagle import EagleDraft
from model.graphs import GraphedRunner
from model.runner import ModelRunner
from runtime.clock import MonotonicClock
from scheduler.draft_shape import DraftShape
from scheduler.planning.speculation import Speculation

CHAIN = next(name for name, shape in SHAPES.items() if shape.num_steps and not shape.is_tree)


def test_the_length_is_what_was_kept_and_one_more() -> None:
    speculation = Speculation(DraftShape(3), 8)
    assert mean_length(speculation) == mean_length(Speculation.without_draft()) == 1.0
    speculation.count(3, [(5,), (5, 6, 7), (5, 6, 7, 8), (5, 6)])
    assert mean_length(speculation) == pytest.approx((1 + 3 + 4 + 2) / 4)


def test_a_random_draft_has_the_embedding_and_head_of_its_target() -> None:
    runner = random_runner(TINY, "cpu", PAGE_SIZE, with_draft=True)
    assert isinstance(runner.draft, EagleDraft)
    assert runner.draft.embedding_VE is runner.decoder.embedding_VE and runner.draft.head is runner.decoder.head
    costs = measure_costs(runner, 2, 20, 2, 1)
    assert min(costs.plain_us, costs.draft_us, *costs.verify_us, *costs.extend_us) > 0


@pytest.mark.parametrize("with_graphs", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_a_worker_launches_in_this_shape(name: str, with_graphs: bool) -> None:
    torch.set_num_threads(1)
    runner = random_runner(TINY, "cpu", PAGE_SIZE, with_draft=True)
    with started(runner, name, 2, 200, with_graphs=with_graphs) as side:
        decoding = Decoding.on(side.executor, side.stream, MonotonicClock(), overlap=True, speculation=side.speculation)
        decoding.start(2, 20, 150)
        side.stream.is_marking = True
        assert decoding.run(3) > 0
        spans = side.stream.spans()
        used = side.executor.runner
        assert isinstance(used, GraphedRunner) == with_graphs
        assert not isinstance(used, GraphedRunner) or used.num_replays > 0
    names = {span.name for span in spans}
    if SHAPES[name].num_steps:
        parts = parts_of(spans)
        assert {"propose", "verify", "publish", "extend"} <= names and parts.verify > 0
        assert side.speculation.proposed[0] > 0 and 1 <= mean_length(side.speculation) <= 1 + SHAPES[name].num_steps
    else:
        assert "compute" in names and "propose" not in names


@pytest.mark.slow
def test_held_out_prompts_have_answers_that_do_not_end() -> None:
    runner = ModelRunner.load(STORY, device="cpu")
    load = held_out(runner, 2, 16)
    assert len(load.prompts) >= 2 and load.num_tokens == 16
    with pytest.raises(RuntimeError, match=r"\d+ of 8 answers are long enough, expected 1"):
        held_out(runner, 1, 600)
