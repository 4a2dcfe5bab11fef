"""Clusters with drafts on a GPU: chains, trees and several draft layers, of fake and of real drafts, and with graphs.

The same tests run on a CPU, where a "graph" runs what it captured again: so they are right before a GPU sees them.
"""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from model.cuda_capture import CudaCapture
from model.graphs import GraphedDraft, GraphedRunner
from model.runner import DraftSource, ModelRunner
from protocol.messages_gateway import SamplingParams
from scheduler.draft_shape import DraftShape
from testkit.checkpoints import greedy_reference, make_checkpoint
from tests.cluster import Cluster
from tests.doubles.hash_model import FakeRunner
from tests.drafts import add_mtp, make_draft
from tests.explore.proposals import Proposals

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
MODES: dict[str, dict[str, Any]] = {
    "chain": {"num_steps": 4},
    "tree": {"num_steps": 4, "tree": (3, 12)},
    "layers": {"num_steps": 3},
}
SHAPES = {"chain": DraftShape(4), "tree": DraftShape(4, 3, 12), "layers": DraftShape(3)}
NUM_LAYERS = 3
KINDS = {"eagle": "chain", "eagle3": "tree", "mtp": "layers"}  # how each real draft proposes here
GREEDY = SamplingParams(max_tokens=24, temperature=0.0)


def prompts(vocab_size: int) -> list[list[int]]:
    return [[(7 * index + 3 * at) % vocab_size for at in range(1 + 9 * index)] for index in range(6)]


def answers(cluster: Cluster, vocab_size: int) -> list[list[int]]:
    """The tokens of every prompt, all at once. Ends the cluster."""
    for index, prompt in enumerate(prompts(vocab_size)):
        cluster.assign(f"r{index}", prompt, GREEDY)
    cluster.run()
    assert not cluster.failures
    cluster.close()
    return [cluster.answers[f"r{index}", 0].ids for index in range(len(prompts(vocab_size)))]


def graphed(runner: ModelRunner) -> GraphedRunner:
    return GraphedRunner(runner, CudaCapture() if runner.device.type == "cuda" else lambda run: run)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("topology, overlap", [("1U", True), ("1P1D", True), ("1P1D", False)])
@pytest.mark.parametrize("debug", [True, False])  # its checks wait for the device: without them launches overlap
@pytest.mark.parametrize("device", DEVICES)
def test_a_fake_draft_keeps_every_right_proposal(
    device: str, debug: bool, topology: str, overlap: bool, mode: str
) -> None:
    """A wrong page, token or feature costs it proposals, and a wrong proposal that is kept changes the text."""
    runner = FakeRunner(
        context_length=256,
        device=torch.device(device),
        draft_seed=1,
        num_draft_layers=NUM_LAYERS if mode == "layers" else 1,
    )
    cluster = Cluster(runner, topology, overlap=overlap, debug=debug, mirrored="U" not in topology, **MODES[mode])
    planners = [worker.planner for worker in cluster.decodes.values()]
    planners += [worker.planner for worker in cluster.unifieds]
    seen = [Proposals(planner, runner) for planner in planners]
    expected = [runner.expected_tokens(prompt, GREEDY.max_tokens) for prompt in prompts(runner.vocab_size)]
    assert answers(cluster, runner.vocab_size) == expected
    assert sum(proposal.num_kept for proposal in seen) > 40


def real_runner(kind: str, folder: Path, device: str) -> ModelRunner:
    """A tiny model with a random draft of this kind."""
    target = make_checkpoint(folder / "target", "qwen3")
    if kind == "mtp":
        add_mtp(target, NUM_LAYERS)
        source = DraftSource(kind, target, NUM_LAYERS)
    else:
        source = DraftSource(kind, make_draft(folder / "draft", target, kind, "qwen3"))
    return ModelRunner.load(target, device=device, dtype="float32", draft=source)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_graphs_of_real_drafts_give_the_tokens_of_transformers(device: str, kind: str, tmp_path: Path) -> None:
    runner, mode = real_runner(kind, tmp_path / kind, device), KINDS[kind]
    vocab_size = runner.config.vocab_size
    plain = make_checkpoint(tmp_path / "plain", "qwen3")
    expected = greedy_reference(plain, prompts(vocab_size), GREEDY.max_tokens)

    for overlap, with_graphs in product((True, False), (True, False)):
        own = graphed(runner)
        cluster = Cluster(own, "1U", overlap=overlap, max_context=256, **MODES[mode])
        draft = own.draft
        assert isinstance(draft, GraphedDraft)
        if with_graphs:
            cluster.executor(cluster.unifieds[0]).warm_up(SHAPES[mode])
            assert own.why_none == ""
        assert answers(cluster, vocab_size) == expected
        replays = [own.num_replays, *(graphs.num_replays for graphs in draft.graphs[: draft.num_layers])]
        assert all(replays) if with_graphs else not any(replays)
