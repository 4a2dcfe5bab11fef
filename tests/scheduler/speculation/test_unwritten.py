"""What a draft has still to read is written as it was when it began to wait, and before its pages have other owners."""

import random

import pytest

from model.graphs import GraphedRunner
from protocol.messages_gateway import FinishReason
from scheduler.draft_shape import DraftShape
from scheduler.planning.speculation import Speculation
from scheduler.speculation.chain import Chain
from tests.doubles.hash_model import FakeRunner
from tests.explore.proposals import Proposals
from tests.scheduler.building import ManualStream, decode, finish, make_executor, make_planner
from tests.scheduler.speculating import MODEL, PROMPT, STEPS, begun, speculating, stepping, take


def test_hidden_states_that_wait_are_not_those_of_a_later_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs write the features of every launch into the same memory."""
    runner = GraphedRunner(FakeRunner(vocab_size=97, context_length=64, draft_seed=1), lambda run: run)
    executor = make_executor(ManualStream(), runner=runner)
    runner.capture(executor.kv, 1, executor.kv.layout.num_pages(64), STEPS + 1)
    planner = make_planner(executor, speculation=Speculation(DraftShape(STEPS), 9))
    stepping(monkeypatch, planner, 0, 0, 0, STEPS)
    proposals, req = Proposals(planner, MODEL), begun(planner)
    while len(req.outputs) < 20:
        expected = MODEL.expected_accepts((*PROMPT, *req.outputs), STEPS) if len(req.outputs) > 3 else 0
        num_known = len(req.outputs)
        if num_known:
            decode(planner)
        take(planner, executor)
        assert len(req.outputs) == num_known + expected + 1
    assert proposals.num_kept > 0 and runner.num_replays > 3


@pytest.mark.parametrize("seed", range(6))
def test_the_newest_state_of_a_row_counts_whichever_launches_lie_between(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Quiet launches of decodes alone leave theirs to a later write, those with chunks of prompts do not."""
    rng = random.Random(seed)
    executor, planner = speculating(ManualStream())
    kinds = [kind for length in range(1, 5) for kind in (*rng.choices(("decodes", "chunk"), k=length), "proposes")]
    stepping(monkeypatch, planner, *(STEPS if kind == "proposes" else 0 for kind in kinds))
    proposals, req = Proposals(planner, MODEL), begun(planner, num_tokens=50)
    take(planner, executor)
    for number, kind in enumerate(kinds):
        if kind == "chunk":
            other = begun(planner, tuple(rng.choices(range(97), k=3)), num_tokens=1, name=f"other {number}")
            take(planner, executor)
            other.finish = FinishReason.LENGTH
            planner.release(other)
            planner.collect()
        else:
            decode(planner)
            take(planner, executor)
    assert len(req.outputs) > len(kinds) and proposals.num_checked > 4 and proposals.num_kept > 0


def test_what_a_draft_has_still_to_write_is_written_by_a_launch_that_cannot_be_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rows are given back after it, and the next launch that proposes must not write their pages."""
    stream = ManualStream()
    executor, planner = speculating(stream)
    stepping(monkeypatch, planner, 0, 0, STEPS)
    req, _ = begun(planner), begun(planner, (5, 6, 7), name="other")
    take(planner, executor)
    take(planner, executor)
    decode(planner)
    take(planner, executor)
    with monkeypatch.context() as broken:
        broken.delattr(Chain, "build")
        decode(planner)
        assert finish(planner, executor)[1].error
    pages, req.finish = list(req.held.pages), FinishReason.CANCELLED
    planner.release(req)
    planner.collect()
    assert pages and not planner.kv_manager.retired
    executor.kv.layer(2)[pages] = 7.0  # of a new owner
    decode(planner)
    take(planner, executor)
    is_untouched = bool((executor.kv.layer(2)[pages] == 7.0).all())
    assert is_untouched, "the draft has written into pages of a new owner"
