"""A unified worker with a draft draws the tokens that it draws without one, and keeps the proposals that are right."""

from dataclasses import replace

import pytest

from model.inputs import ModelInput
from protocol.messages_gateway import SamplingParams
from tests.decode.driving import VOCAB, Driven, expect_rest, make_cluster
from tests.doubles.hash_model import FakeRunner
from tests.explore.expected import expected
from tests.explore.proposals import Proposals

RUNNER = FakeRunner(vocab_size=VOCAB, context_length=256, draft_seed=1)
HOT = 20.0  # choices of one prompt draw different tokens


def expect_drawn(cluster: Driven) -> None:
    """Every answer is the one that is drawn without a draft."""
    for (name, choice), answer in cluster.answers.items():
        prompt, params = cluster.asked[name]
        assert (tuple(answer.ids), answer.finish) == expected(tuple(prompt), params, choice)
    expect_rest(cluster)


# steps, top-k, nodes: a level, as many nodes as candidates, deep and narrow, wide, more levels than nodes, with bit 63
CHAINS = [(0, 1, 0), (1, 1, 0), (3, 1, 0), (5, 1, 0)]
TREES = [(1, 2, 3), (2, 2, 7), (5, 2, 8), (3, 4, 20), (4, 3, 3), (4, 6, 64)]


@pytest.mark.parametrize("overlap,page_size", [(True, 1), (False, 4)])
@pytest.mark.parametrize("shape", [*CHAINS, *TREES])
def test_launches_keep_the_proposals_that_the_target_draws(
    shape: tuple[int, int, int], page_size: int, overlap: bool
) -> None:
    num_steps, *tree = shape
    cluster = make_cluster("1U", RUNNER, num_steps=num_steps, tree=tuple(tree), page_size=page_size, overlap=overlap)
    proposals = Proposals(cluster.unified.planner, RUNNER)
    for index in range(6):
        params = SamplingParams(max_tokens=20 + index, temperature=0.0 if index % 2 else 0.7, seed=index)
        cluster.ask(f"r{index}", 1 + 11 * index, params)
    cluster.run()
    expect_drawn(cluster)
    assert proposals.num_kept > 30 or num_steps == 0


@pytest.mark.parametrize(
    "chunk_size,page_size,overlap", [(0, 1, True), (1, 4, False), (1, 4, True), (7, 4, True), (16, 16, False)]
)
@pytest.mark.parametrize("num_layers,num_steps", [(2, 0), (2, 1), (2, 2), (3, 2), (3, 3)])
def test_several_draft_layers(num_layers: int, num_steps: int, chunk_size: int, page_size: int, overlap: bool) -> None:
    """Every launch keeps the proposals that are right, of prompts shorter than the layers, too, and of choices that
    begin with different tokens. Every second time, launches propose fewer tokens now and then."""
    runner = replace(RUNNER, num_draft_layers=num_layers)
    sizes = {"page_size": page_size, "num_pages": 4096 // page_size, "chunk_size": chunk_size}
    cluster = make_cluster("1U", runner, num_steps=num_steps, overlap=overlap, **sizes)
    proposals = Proposals(cluster.unified.planner, runner, num_steps if overlap else None, rests=False)
    for index, length in enumerate((1, 2, 3, 7, 8, 16, 29)):
        params = SamplingParams(max_tokens=12 + index, temperature=(0.0, 0.7, HOT)[index % 3], seed=index)
        cluster.ask(f"r{index}", length, params, 1 + index % 3)
    cluster.run()
    expect_drawn(cluster)
    assert proposals.num_kept >= 15 * num_steps


@pytest.mark.parametrize("tree, width", [((1, 0), 4), ((2, 7), 7)])
def test_the_budget_of_a_launch_counts_all_tokens_that_are_verified(tree: tuple[int, int], width: int) -> None:
    seen: list[ModelInput] = []
    runner = FakeRunner(vocab_size=VOCAB, context_length=256, draft_seed=1, before_forward=seen.append)
    budget = 30
    cluster = make_cluster("1U", runner, num_steps=3, tree=tree, chunk_size=budget)
    for index in range(6):
        cluster.ask(f"r{index}", 50, SamplingParams(max_tokens=30, temperature=0.0))
    cluster.run()
    mixed = [inp for inp in seen if inp.extend_lens and inp.num_decodes]
    assert len(mixed) > 5 and {inp.num_decodes % width for inp in mixed} == {0}
    for inp in mixed:  # one token of a prompt is computed beside any number of rows
        assert inp.input_ids_T.numel() <= max(budget, inp.num_decodes + 1)
    assert any(inp.input_ids_T.numel() == budget for inp in mixed), "what is left of the budget goes to prompts"
    expect_rest(cluster)
