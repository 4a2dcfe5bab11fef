"""Speculative launches on a stream that runs on command: plans that wait for lengths, launches that fail, page 0."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from model.fake_draft import FakeDraft
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from protocol.kv_layout import pages_for
from protocol.messages_gateway import FinishReason
from scheduler.planning.draft_writes import MAX_PUT_OFF
from scheduler.speculation.draft_launches import DraftLaunch
from tests.doubles.hash_model import FakeRunner
from tests.explore.proposals import Proposals
from tests.scheduler import building
from tests.scheduler.building import ManualStream, admitted, decode, drawn, finish, greedy, prompt_chunk, tensors_in
from tests.scheduler.speculating import (
    CHAIN,
    MODEL,
    PROMPT,
    STEPS,
    Tree,
    begun,
    speculating,
    speculating_with,
    stepping,
    take,
)

chains_and_trees = pytest.mark.parametrize("tree", [CHAIN, (2, 7)], ids=["chain", "tree"])


def test_a_plan_waits_for_lengths_and_only_for_them() -> None:
    stream = ManualStream()
    executor, planner = speculating(stream)
    req, other = begun(planner), admitted(planner, (5, 6, 7), greedy(9), "other")
    decode(planner)
    assert len(executor.launches) == 2 and not executor.submitted  # the length of a prompt is known
    take(planner, executor)
    planner.launch(prompt_chunk(other), planner.decodes())
    planner.join([other])
    assert len(executor.submitted) == 1  # the second launch has not published its lengths
    assert [draw.row for draw in executor.running.draws] == [req.held.row]  # but the plan is applied
    while executor.submitted:
        stream.run_one()
        planner.poll()
    assert len(executor.launches) == 2
    assert stream.queue  # the second launch's draft-extend is still to come


@chains_and_trees
def test_nothing_is_proposed_for_a_row_whose_pages_lack_the_drafts_kv(
    monkeypatch: pytest.MonkeyPatch, tree: Tree
) -> None:
    """Here they have it, so every proposal shows: those of a launch, and those after one that proposed nothing."""
    executor, planner = speculating(ManualStream(), tree=tree)
    stepping(monkeypatch, planner, STEPS, STEPS, STEPS, STEPS, 0, STEPS)
    seeing, blind = begun(planner, name="seeing"), begun(planner, name="blind")
    take(planner, executor)
    take(planner, executor)
    decode(planner)
    take(planner, executor)
    running = executor.running
    draws = [replace(draw, drafts=draw.row != blind.held.row) for draw in running.draws]
    running.sampling, running._members = replace(running.sampling, draws=draws), None

    lengths = []
    for _ in range(6):
        decode(planner)
        take(planner, executor)
        lengths.append((len(blind.outputs), len(seeing.outputs)))
    (first, _), (last, most) = lengths[0], lengths[-1]
    assert last == first + 5 < most and seeing.outputs[:last] == blind.outputs


def test_what_follows_a_plan_that_waits_stays_behind_it() -> None:
    stream = ManualStream()
    executor, planner = speculating(stream)
    req = begun(planner)
    other = admitted(planner, PROMPT, greedy(4), "other")
    decode(planner)
    take(planner, executor)
    decode(planner)
    planner.copies.fork(req, [other])
    assert [type(operation).__name__ for operation in executor.submitted] == ["Plan", "CopyPages"]
    take(planner, executor)
    planner.poll()
    assert not executor.submitted


def test_a_request_is_released_while_its_plan_waits() -> None:
    stream = ManualStream()
    executor, planner = speculating(stream)
    req, other = begun(planner), begun(planner, (5, 6, 7), name="other")
    Proposals(planner, MODEL)
    decode(planner)
    row, pages = req.held.row, list(req.held.pages)
    planner.release(req)
    for _ in range(5):
        assert planner.poll() == [] and executor.submitted
    planner.collect()
    assert planner.kv_manager.retired, "its row and pages are quarantined while the plan waits"
    while planner.in_flight:
        take(planner, executor)
        planner.collect()
    assert not planner.kv_manager.retired and not planner.kv_manager.pages.num_own(pages)
    assert row not in {draw.row for draw in executor.running.draws[1:]}
    while len(other.outputs) < 30:
        decode(planner)
        take(planner, executor)
    assert other.outputs == MODEL.expected_tokens((5, 6, 7), 30)


@chains_and_trees
@pytest.mark.parametrize("failing", [2, 3])
def test_a_launch_that_fails_releases_the_plan_that_waits_for_it(failing: int, tree: Tree) -> None:
    stream = ManualStream()
    executor, planner = speculating(stream, failing, tree=tree)
    req = begun(planner)
    take(planner, executor)
    errors = []
    for _ in range(4):
        decode(planner)
        errors.append(finish(planner, executor)[1].error)
    assert [bool(error) for error in errors].index(True) == failing - 2
    assert not executor.submitted and req.holding is not None


@chains_and_trees
@pytest.mark.parametrize("failing", range(1, 9))
def test_a_draft_that_fails_costs_one_launch(failing: int, monkeypatch: pytest.MonkeyPatch, tree: Tree) -> None:
    """It runs behind the prompt, then four times and three times: to begin, to propose, and behind the verification."""
    run_layer, calls = FakeDraft.run_layer, count(1)

    def broken(self: FakeDraft, *args: Any, **options: Any) -> Tensor:
        if next(calls) == failing:
            raise RuntimeError("the draft is broken")
        logits: Tensor = run_layer(self, *args, **options)
        return logits

    monkeypatch.setattr(FakeDraft, "run_layer", broken)
    executor, planner = speculating(ManualStream(), tree=tree)
    req, errors = begun(planner), []
    for _ in range(3):
        decode(planner)
        errors.append(finish(planner, executor)[1].error)
    errors.append(finish(planner, executor)[1].error)
    assert errors.index("RuntimeError: the draft is broken") == (failing > 1) + (failing > 5)
    assert sum(map(bool, errors)) == 1 and not executor.submitted

    req.finish = FinishReason.CANCELLED
    planner.release(req)
    planner.collect()
    proposals, other = Proposals(planner, MODEL), begun(planner, (5, 6, 7), name="other")
    take(planner, executor)
    while len(other.outputs) < 30:
        decode(planner)
        take(planner, executor)
    assert other.outputs == MODEL.expected_tokens((5, 6, 7), 30) and proposals.num_kept > 10


@chains_and_trees
def test_nothing_is_written_behind_the_end_of_a_context(tree: Tree) -> None:
    stream = ManualStream()
    executor, planner = speculating(stream, tree=tree)
    proposals = Proposals(planner, MODEL)
    req = begun(planner, num_tokens=7)
    layers = [executor.kv.layer(layer) for layer in range(executor.kv.layout.num_layers)]
    for layer in layers:
        layer.fill_(7.0)
    while len(req.outputs) < 7:
        if req.num_sampled < 7:
            decode(planner)
        take(planner, executor)
    assert req.outputs == MODEL.expected_tokens(PROMPT, 7) and proposals.num_kept

    own = req.held.pages
    assert len(own) == pages_for(len(PROMPT) + 7, 4)
    for layer in layers:
        others = [page for page in range(1, len(layer)) if page not in own]
        assert (layer[others] == 7.0).all()
        behind = len(PROMPT) + 7 - 1  # the first position that is never committed
        assert (layer[own[behind // 4], :, behind % 4 :] == 7.0).all()


@chains_and_trees
def test_a_stop_token_within_a_run_ends_it(tree: Tree) -> None:
    stream = ManualStream()
    executor, planner = speculating(stream, tree=tree)
    tokens = MODEL.expected_tokens(PROMPT, 30)
    for index in range(2, 12):
        end = tokens[index]
        req = building.begun(planner, PROMPT, greedy(30, eos=(end,)), f"r{index}")
        take(planner, executor)
        while req.finish is None:
            decode(planner)
            take(planner, executor)
        assert req.outputs == tokens[: tokens.index(end) + 1]
        planner.release(req)
        planner.collect()


@pytest.mark.parametrize("num_steps", [(0, 3), (0, 0, 3, 0, 2, 0), (3, 0, 3), (*[0] * (2 * MAX_PUT_OFF + 3), 3)])
def test_launches_that_propose_nothing_between_others(
    monkeypatch: pytest.MonkeyPatch, num_steps: tuple[int, ...]
) -> None:
    """The first launch behind them has the proposals that it would have had."""
    executor, planner = speculating(ManualStream())
    stepping(monkeypatch, planner, *num_steps)
    proposals, req = Proposals(planner, MODEL), begun(planner)
    take(planner, executor)
    for steps in num_steps:
        expected = MODEL.expected_accepts((*PROMPT, *req.outputs), steps) if steps else 0
        num_known = len(req.outputs)
        decode(planner)
        take(planner, executor)
        assert len(req.outputs) == num_known + expected + 1
    assert proposals.num_kept > 0 and req.outputs == MODEL.expected_tokens(PROMPT, 30)[: len(req.outputs)]


def test_what_a_draft_has_still_to_write_is_written_before_its_pages_are_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = ManualStream()
    executor, planner = speculating(stream)
    stepping(monkeypatch, planner, 0)
    req, other = begun(planner), begun(planner, (5, 6, 7), name="other")
    take(planner, executor)
    take(planner, executor)
    decode(planner)
    take(planner, executor)
    pages, req.finish = list(req.held.pages), FinishReason.CANCELLED
    planner.release(req)
    while planner.kv_manager.retired:
        stream.synchronize()
        planner.poll()
        planner.collect()
    executor.kv.layer(2)[pages] = 7.0  # of a new owner
    for _ in range(2 * MAX_PUT_OFF):
        decode(planner)
        take(planner, executor)
    assert other.finish is None and (executor.kv.layer(2)[pages] == 7.0).all()


def test_a_launch_behind_one_that_proposes_nothing_waits_for_no_length(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, planner = speculating(ManualStream())
    stepping(monkeypatch, planner, 0)
    begun(planner)
    decode(planner)
    decode(planner)
    assert len(executor.launches) == 3 and not executor.submitted


def test_no_length_is_beyond_its_context() -> None:
    """A run may be longer than what is left. The launch that was planned meanwhile does not count that."""
    most = []
    for num_tokens in range(3, 12):
        executor, planner = speculating(ManualStream())
        req = begun(planner, num_tokens=num_tokens)
        take(planner, executor)
        decode(planner)
        while req.finish is None:
            decode(planner)
            take(planner, executor)
            planner.poll()
            most += (executor.running.seq_lens_cpu - req.longest).tolist()
    assert max(most) == 0, "no run was cut by the end, or one was counted as a whole"


def test_a_row_whose_end_is_not_known_yet_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in one more launch, which proposes nothing."""
    for num_tokens in range(3, 12):
        executor, planner = speculating(ManualStream())
        stepping(monkeypatch, planner, 3, 0)
        req = begun(planner, num_tokens=num_tokens)
        take(planner, executor)
        decode(planner)
        decode(planner)
        _, result = finish(planner, executor)
        pages = list(req.held.pages)
        written = torch.stack([executor.kv.layer(layer)[pages] for layer in range(3)])
        req.append(drawn(planner, result)[req])
        if req.finish is FinishReason.LENGTH:
            finish(planner, executor)
            after = torch.stack([executor.kv.layer(layer)[pages] for layer in range(3)])
            assert torch.equal(after.view(torch.int32), written.view(torch.int32))
            return
    pytest.fail("no choice has ended by a run of tokens")


@dataclass(frozen=True)
class NanBehind(FakeRunner):
    """The scores behind the token at `position` are NaN."""

    position: int = 0

    def forward_with_features(
        self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> tuple[Tensor, Tensor]:
        is_bad_L = inp.positions_T[inp.logit_indices_L] == self.position
        logits_LV, features_TF = super().forward_with_features(inp, kv, on_layer)
        return logits_LV.masked_fill(is_bad_L[:, None], torch.nan), features_TF


@chains_and_trees
def test_a_run_ends_before_scores_that_are_not_finite(tree: Tree) -> None:
    """So a choice has the tokens that it would have had without a draft."""
    lengths = set()
    for num_tokens in range(2, 12):
        position = len(PROMPT) + num_tokens - 1
        runner = NanBehind(vocab_size=97, context_length=64, draft_seed=1, position=position)
        executor, planner = speculating_with(ManualStream(), runner, tree)
        req = begun(planner)
        take(planner, executor)
        decode(planner)
        _, result = finish(planner, executor)
        while not result.not_finite:
            req.append(drawn(planner, result)[req])
            decode(planner)
            _, result = finish(planner, executor)
        assert result.not_finite == (req.held.owner,)
        run = drawn(planner, result)[req]
        assert [*req.outputs, *run] == MODEL.expected_tokens(PROMPT, num_tokens)
        lengths.add(len(run))
    assert len(lengths) > 1, "the scores should be at different places of a run"


@chains_and_trees
def test_a_launch_names_each_of_its_tensors(tree: Tree) -> None:
    """What it does not name, another stream may overwrite while the launch reads it."""
    stream = ManualStream()
    executor, planner = speculating(stream, tree=tree)
    begun(planner)
    for begins in (True, False):
        decode(planner)
        take(planner, executor)  # what was launched before
        planner.poll()
        (launch,) = executor.launches
        assert isinstance(launch, DraftLaunch) and launch.draft.rows.begin.has_rows == begins
        held = {id(tensor) for tensor in tensors_in(launch.draft)}
        assert len(held) > 12 and {id(tensor) for tensor in launch.draft.tensors} == held <= set(
            map(id, launch.tensors)
        )
