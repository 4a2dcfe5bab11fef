"""A unified worker with a draft draws the tokens that it draws without one, and keeps the proposals that are right."""

from dataclasses import replace

import pytest

from model.inputs import ModelInput
from protocol.messages_gateway import SamplingParams
from tests.cluster import Cluster
from tests.decode.driving import VOCAB, expect_rest, make_cluster, prompt_of
from tests.doubles.hash_model import FakeRunner
from tests.explore.expected import expected
from tests.explore.proposals import Proposals

RUNNER = FakeRunner(vocab_size=VOCAB, context_length=256, draft_seed=1)
HOT = 20.0  # choices of one prompt draw different tokens


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("num_steps", [0, 1, 3, 5])
def test_tokens_are_those_without_a_draft(num_steps: int, page_size: int, overlap: bool) -> None:
    num_kept = serve(make_cluster("1U", RUNNER, num_steps=num_steps, page_size=page_size, overlap=overlap))
    assert num_steps == 0 or num_kept > 30


# top-k, steps, nodes: a level, as many nodes as candidates, deep and narrow, wide, more levels than nodes, with bit 63
TREES = [(2, 1, 3), (2, 2, 7), (2, 5, 8), (4, 3, 20), (3, 4, 3), (6, 4, 64)]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("shape", TREES)
def test_trees_keep_the_path_that_the_target_draws(shape: tuple[int, int, int], page_size: int, overlap: bool) -> None:
    topk, num_steps, num_nodes = shape
    tree = (topk, num_nodes)
    num_kept = serve(make_cluster("1U", RUNNER, num_steps=num_steps, tree=tree, page_size=page_size, overlap=overlap))
    assert num_kept > 30


def serve(cluster: Cluster) -> int:
    """Serves six requests whose answers and proposals are checked. Returns how many proposals were kept."""
    proposals = Proposals(cluster.unifieds[0].planner, RUNNER)
    wanted = {}
    for index in range(6):
        prompt = prompt_of(f"r{index}", 1 + 11 * index)
        params = SamplingParams(max_tokens=20 + index, temperature=0.0 if index % 2 else 0.7, seed=index)
        cluster.assign(f"r{index}", prompt, params)
        wanted[f"r{index}"] = expected(tuple(prompt), params, 0)
    cluster.run()
    for name, (tokens, reason) in wanted.items():
        answer = cluster.answers[name, 0]
        assert (tuple(answer.ids), answer.finish) == (tokens, reason)
    expect_rest(cluster)
    return proposals.num_kept


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("chunk_size,page_size", [(0, 1), (1, 4), (7, 4), (16, 16)])
@pytest.mark.parametrize("num_layers,num_steps", [(2, 0), (2, 1), (2, 2), (3, 2), (3, 3)])
def test_several_draft_layers(num_layers: int, num_steps: int, chunk_size: int, page_size: int, overlap: bool) -> None:
    """Every launch keeps the proposals that are right, of prompts shorter than the layers, too, and of choices that
    begin with different tokens. Every second time, launches propose fewer tokens now and then."""
    runner = replace(RUNNER, num_draft_layers=num_layers)
    sizes = {"page_size": page_size, "num_pages": 4096 // page_size, "chunk_size": chunk_size}
    cluster = make_cluster("1U", runner, num_steps=num_steps, overlap=overlap, **sizes)
    proposals = Proposals(cluster.unifieds[0].planner, runner, num_steps if overlap else None)
    wanted = dict[tuple[str, int], tuple[tuple[int, ...], str]]()
    for index, length in enumerate((1, 2, 3, 7, 8, 16, 29)):
        prompt, num_choices = prompt_of(f"r{index}", length), 1 + index % 3
        params = SamplingParams(max_tokens=12 + index, temperature=(0.0, 0.7, HOT)[index % 3], seed=index)
        cluster.assign(f"r{index}", prompt, params, num_choices)
        wanted |= {(f"r{index}", choice): expected(tuple(prompt), params, choice) for choice in range(num_choices)}
    cluster.run()
    for key, (tokens, reason) in wanted.items():
        assert (tuple(cluster.answers[key].ids), cluster.answers[key].finish) == (tokens, reason)
    expect_rest(cluster)
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
