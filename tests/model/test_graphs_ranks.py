"""Graphs of the ranks of a group: all replay the graph of one size together, or none has graphs."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.cuda_capture import Run
from model.graphs import GraphedDraft, GraphedRunner
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.runner import DraftSource, ModelRunner, Runner
from protocol.errors import GroupBroken
from protocol.messages_group import StepShape
from testkit.checkpoints import make_checkpoint
from tests.doubles.hash_model import FakeRunner
from tests.drafts import make_draft
from tests.model.driving import Lane, Lanes, idle, random_prompt
from tests.model.ranks import MetCollectives, met
from tests.model.speculating import again

MAX_PAGES = 8
OnLayer = Callable[[int], None] | None


class Rank:
    """One rank with graphs of up to 4 decodes, which are captured at once."""

    def __init__(self, runner: Runner, make_graph: object = again) -> None:
        self.graphed = GraphedRunner(runner, make_graph)  # type: ignore[arg-type]
        self.lanes = Lanes(self.graphed, 4, poison=True)
        for layer in range(self.lanes.kv.layout.num_layers):
            self.lanes.kv.layer(layer)[0].zero_()
        self.graphed.capture(self.lanes.kv, 4, MAX_PAGES)

    def prefill(self, count: int, step: StepShape) -> list[Lane]:
        """So many requests, whose prompts of 3 tokens are computed together."""
        lanes = [self.lanes.lane(random_prompt(3, 97, seed), 9) for seed in range(count)]
        inp = self.lanes.model_input([(lane, 3) for lane in lanes], []) if lanes else idle()
        logits_LV = self.graphed.forward(replace(inp, step=step), self.lanes.kv)
        for lane, logits_V in zip(lanes, logits_LV, strict=True):
            lane.done = 3
            lane.tokens.append(int(logits_V.argmax()))
        return lanes

    def decode(self, lanes: list[Lane], step: StepShape) -> None:
        """One token more of each."""
        inp = self.lanes.model_input([], lanes) if lanes else idle()
        logits_LV = self.graphed.forward(replace(inp, step=step), self.lanes.kv)
        for lane, logits_V in zip(lanes, logits_LV, strict=True):
            lane.done += 1
            lane.tokens.append(int(logits_V.argmax()))


@pytest.mark.parametrize("fake", [True, False])
def test_ranks_replay_the_graph_of_one_size(tmp_path: Path, fake: bool) -> None:
    """The one that the busiest rank needs; an idle rank replays it with padding only."""
    folder = make_checkpoint(tmp_path, "qwen3", intermediate_size=96)

    def loaded(ranks: MetCollectives | None) -> Runner:
        if fake:
            return FakeRunner(97, context_length=64, collectives=ranks)
        return ModelRunner.load(folder, device="cpu", collectives=ranks)

    alone = Lanes(loaded(None), 4)
    expected = [alone.generate(random_prompt(3, 97, seed), 4) for seed in range(3)]

    def main(ranks: MetCollectives) -> None:
        rank = Rank(loaded(ranks))
        count = (3, 1, 0)[ranks.rank]
        lanes = rank.prefill(count, StepShape(1, (9, 3, 0)))
        assert rank.graphed.num_replays == 0
        for number, graphs in enumerate((True, False, True), 2):
            ranks.entered.clear()
            rank.decode(lanes, StepShape(number, (3, 1, 0), graphs))
            size = 4 if graphs else 3
            assert [shape[-2] for _, _, shape in ranks.entered] == [size] * 2 * rank.graphed.config.num_layers
        assert rank.graphed.num_replays == 2
        assert [lane.tokens[3:] for lane in lanes] == expected[:count]

    met(3, main)


@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("kind", ["fake", "with a draft", "real"])
def test_a_rank_with_a_prompt_enters_the_collectives_of_the_graph_that_the_others_replay(
    tmp_path: Path, kind: str, scores: bool
) -> None:
    """Its prompt of 3 tokens, or a chunk beside a decode, takes no graph from them, and all tokens are exact."""
    folder = make_checkpoint(tmp_path, "qwen3", intermediate_size=96)

    def loaded(ranks: MetCollectives | None) -> Runner:
        if kind == "real":
            return ModelRunner.load(folder, device="cpu", collectives=ranks)
        return FakeRunner(97, context_length=64, draft_seed=1 if kind == "with a draft" else None, collectives=ranks)

    alone = Lanes(loaded(None), 4)
    expected = [alone.generate(random_prompt(3, 97, seed), 4) for seed in range(2)]

    def main(ranks: MetCollectives) -> None:
        rank, is_late = Rank(loaded(ranks)), ranks.rank == 0
        graphed, kv = rank.graphed, rank.lanes.kv

        def computed(inp: ModelInput) -> Tensor:
            if scores and inp.extend_lens:
                hidden, _ = graphed.hidden(inp, kv)
                return graphed.logits(hidden)
            return graphed.forward(inp, kv) if graphed.draft is None else graphed.forward_with_features(inp, kv)[0]

        lanes = [] if is_late else rank.prefill(2, StepShape(1, (0, 6)))
        if is_late:
            graphed.forward(replace(idle(), step=StepShape(1, (0, 6))), kv)
        ranks.entered.clear()

        # Graphs that were captured say that they are of step 0, and so does this one.
        step = StepShape(0, (3, 2), True)
        if is_late:
            first = rank.lanes.lane(random_prompt(3, 97, 0), 9)
            logits_LV = computed(replace(rank.lanes.model_input([(first, 3)], []), step=step))
            first.done = 3
            first.tokens.append(int(logits_LV[-1].argmax()))
            lanes = [first]
        else:
            rank.decode(lanes, step)
        assert graphed.num_replays == (0 if is_late else 1)
        assert {shape[-2] for _, _, shape in ranks.entered} == {4}, "the size of the graph for three"
        assert len(ranks.entered) == 2 * graphed.config.num_layers

        while len(lanes[0].tokens) < 7:
            rank.decode(lanes, StepShape(0, (1, 2), True))
            if not is_late and len(lanes[0].tokens) == 7:
                rank.decode([], StepShape(0, (1, 2), True))  # the rank that began later goes on alone
        for lane, tokens in zip(lanes, expected, strict=False):
            assert lane.tokens[3:] == tokens[: len(lane.tokens) - 3]

    met(2, main)


def test_a_draft_replays_its_own_graphs_whatever_the_other_ranks_do(tmp_path: Path) -> None:
    target = make_checkpoint(tmp_path / "target", "qwen3")
    source = DraftSource("eagle", make_draft(tmp_path / "draft", target, "eagle", "qwen3"))

    def main(ranks: MetCollectives) -> None:
        rank = Rank(ModelRunner.load(target, device="cpu", draft=source, collectives=ranks))
        draft = rank.graphed.draft
        assert isinstance(draft, GraphedDraft)
        count = 1 + ranks.rank
        inp = rank.lanes.model_input([], [rank.lanes.lane([5], 3) for _ in range(count)])
        ranks.entered.clear()
        draft.run_layer(0, replace(inp, step=StepShape(3, (0, 9))), torch.zeros(count, 48), rank.lanes.kv)
        assert draft.graphs[0].num_replays == 1 and ranks.entered == []

    met(2, main)


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("kind", ["cannot be captured", "has a forward that fails", "computes something else"])
def test_no_rank_has_graphs_if_one_size_fails_on_one_rank(at: int, kind: str) -> None:
    def main(ranks: MetCollectives) -> str:
        made, drift = list[Run](), [0.0]

        class Drifting(FakeRunner):
            """Gives other logits while `drift` is set."""

            def forward(self, inp: ModelInput, kv: PagedKv, on_layer: OnLayer = None) -> Tensor:
                """See Runner."""
                logits_LV: Tensor = super().forward(inp, kv, on_layer)
                return logits_LV + drift[0]

        def make_graph(run: Run) -> Run:
            made.append(run)
            if ranks.rank == 0 or len(made) < at:
                return again(run)
            if kind == "cannot be captured":
                raise RuntimeError("operation not permitted")
            if kind == "has a forward that fails":  # as it is recorded: no rank has entered its collectives
                raise GroupBroken("a forward has failed")

            def other() -> None:
                drift[0] = 50.0
                run()
                drift[0] = 0.0

            return other

        rank = Rank(Drifting(97, context_length=64, collectives=ranks), make_graph)
        assert rank.graphed.max_graphed == 0 and len(made) == at
        lanes = rank.prefill(1, StepShape(1, (3, 3)))
        rank.decode(lanes, StepShape(2, (1, 1)))
        assert rank.graphed.num_replays == 0
        return rank.graphed.why_none

    why = met(2, main)
    own = {
        "cannot be captured": "operation not permitted",
        "has a forward that fails": "a forward has failed",
        "computes something else": "a graph's result differs",
    }
    assert why[0] == "another rank of the group has no such graph" and why[1].startswith(own[kind])


def test_a_replay_that_fails_on_one_rank_breaks_the_group() -> None:
    """The others enter collectives, and this rank does not."""

    def main(ranks: MetCollectives) -> None:
        def make_graph(run: Run) -> Run:
            def replay() -> None:
                raise RuntimeError("no memory")

            return replay if ranks.rank == 0 else again(run)

        match = r"ranks \[0\] never do" if ranks.rank else "graphs of all ranks cannot be captured: no memory"
        with pytest.raises(GroupBroken, match=match):
            Rank(FakeRunner(97, context_length=64, collectives=ranks), make_graph)

    met(2, main)


def test_no_rank_has_graphs_if_those_of_a_draft_fail_on_one_rank(tmp_path: Path) -> None:
    target = make_checkpoint(tmp_path / "target", "qwen3")
    source = DraftSource("eagle", make_draft(tmp_path / "draft", target, "eagle", "qwen3"))

    def main(ranks: MetCollectives) -> str:
        made: list[Run] = []

        def make_graph(run: Run) -> Run:
            made.append(run)
            if ranks.rank == 1 and len(made) == 4:  # behind three of the target
                raise RuntimeError("operation not permitted")
            return again(run)

        rank = Rank(ModelRunner.load(target, device="cpu", draft=source, collectives=ranks), make_graph)
        assert rank.graphed.max_graphed == 0
        return rank.graphed.why_none

    assert met(2, main) == ["another rank of the group has none", "operation not permitted"]


def test_a_forward_that_fails_on_one_rank_breaks_the_group() -> None:
    """The others have entered its collectives."""

    def main(ranks: MetCollectives) -> None:
        def before(_: ModelInput) -> None:
            if ranks.rank == 1:
                raise ValueError("no memory")

        with pytest.raises(GroupBroken, match="ValueError: no memory" if ranks.rank else r"ranks \[1\] never do"):
            Rank(FakeRunner(97, context_length=64, collectives=ranks, before_forward=before))

    met(2, main)


def test_a_step_of_graphs_for_which_none_fits_is_refused() -> None:
    """Other ranks replay one that is larger than all of this one."""

    def main(ranks: MetCollectives) -> None:
        rank = Rank(FakeRunner(97, context_length=64, collectives=ranks))
        with pytest.raises(AssertionError, match="other ranks replay a graph, but none is so large"):
            rank.decode([], StepShape(2, (0, 9), True))
        with pytest.raises(AssertionError, match="without the step of all ranks"):
            rank.graphed.forward(idle(), rank.lanes.kv)

    met(2, main)


@pytest.mark.parametrize("grouped", [(True, True), (True, False), (False, False)])
def test_ranks_have_graphs_of_experts_if_all_group_them(
    tmp_path: Path, grouped: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank may lack Triton. A rank without requests replays the graphs, too."""
    folder, own = make_checkpoint(tmp_path, "mixtral"), threading.local()
    monkeypatch.setattr("model.graphs.is_grouped", lambda *_: own.is_grouped)
    alone = Lanes(ModelRunner.load(folder, device="cpu"), 4)
    expected = [alone.generate(random_prompt(3, 97, seed), 2) for seed in range(2)]

    def main(ranks: MetCollectives) -> None:
        own.is_grouped = grouped[ranks.rank]
        rank = Rank(ModelRunner.load(folder, device="cpu", collectives=ranks))
        assert rank.graphed.max_graphed == (4 if all(grouped) else 0)
        assert rank.graphed.why_none == ("" if all(grouped) else "the host reads how many tokens each expert has")
        lanes = rank.prefill((2, 0)[ranks.rank], StepShape(1, (6, 0)))
        rank.decode(lanes, StepShape(2, (2, 0), all(grouped)))
        assert rank.graphed.num_replays == all(grouped)
        assert [lane.tokens[3:] for lane in lanes] == (expected if ranks.rank == 0 else [])

    met(2, main)
