"""Log-probabilities equal those of transformers' logits, whatever computed a token: alone, behind a hand-over, with
drafts, after giving way. In float32.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from model.runner import DraftSource, ModelRunner
from protocol.logprobs import LogprobsAsked
from protocol.messages_gateway import SamplingParams
from tests.cluster import Cluster
from tests.model.speculating import loaded_mtp
from tests.reference import Reference, reference
from tests.selecting import first

pytestmark = pytest.mark.slow

NUM_TOKENS = 24
BOUND = 1e-4
STORY = Path("models/story")
TEXTS = ("Once upon a time", "The sun was up, and the dog ran to the river because", "What is a river?", "Tell me")
DRAFTS: dict[str, dict[str, Any]] = {
    "": {},
    "eagle": {"num_steps": 3},
    "eagle-tree": {"num_steps": 3, "tree": (3, 8)},
}


def of_reference(name: str) -> Reference:
    return reference("qwen3" if name == "qwen3" else "llama")


def folder_of(name: str) -> Path:
    return STORY if name == "story" else of_reference(name).folder


@cache
def runner_of(name: str, draft: str) -> ModelRunner:
    algorithm = draft.partition("-")[0]
    source = DraftSource(algorithm, Path(f"models/{name}-{algorithm}")) if algorithm else None
    return ModelRunner.load(folder_of(name), device="cpu", dtype="float32", draft=source)


def prompts_of(name: str) -> list[list[int]]:
    if name == "story":
        tokenizer = Tokenizer.from_file(str(STORY / "tokenizer.json"))
        return [tokenizer.encode(text).ids for text in TEXTS]
    return [list(prompt) for prompt in of_reference(name).prompts[:5]]


@cache
def theirs(folder: Path) -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model


def params_of(index: int) -> SamplingParams:
    """Greedy and sampled in turn. One of four asks for none."""
    greedy = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
    params = greedy if index % 2 else replace(greedy, temperature=0.9, top_k=40, seed=index)
    return params if index % 4 == 2 else replace(params, logprobs=LogprobsAsked(index % 4))


@torch.no_grad()
def check(cluster: Cluster, prompts: list[list[int]], folder: Path) -> None:
    """Serves the prompts, and compares each token's with transformers'."""
    for index, prompt in enumerate(prompts):
        cluster.assign(f"r{index}", prompt, params_of(index))
    cluster.run()
    cluster.check()
    cluster.close()
    assert not cluster.failures

    num_compared = 0
    for index, prompt in enumerate(prompts):
        answer, asked = cluster.answers[f"r{index}", 0], params_of(index).logprobs
        if asked is None:
            assert not answer.scores
            continue
        ids = answer.ids
        assert sorted(answer.scores) == list(range(len(ids)))
        logits_TV = theirs(folder)(torch.tensor([[*prompt, *ids[:-1]]])).logits[0, len(prompt) - 1 :].double()
        for seq, logprobs_V in enumerate(logits_TV.log_softmax(-1)):
            score = answer.scores[seq]
            assert score.logprob == pytest.approx(float(logprobs_V[ids[seq]]), abs=BOUND)
            values = logprobs_V.topk(asked.num_top).values.tolist()
            assert [value for _, value in score.top] == pytest.approx(values, abs=BOUND)
            of_ids = [float(logprobs_V[token]) for token, _ in score.top]
            assert of_ids == pytest.approx(values, abs=BOUND), "a near tie may stand in the other order"
            above = int((logprobs_V > logprobs_V[ids[seq]] + BOUND).sum())
            below = int((logprobs_V > logprobs_V[ids[seq]] - BOUND).sum())
            assert above + 1 <= score.rank <= max(below, above + 1)
            num_compared += 1
    assert num_compared > 2 * NUM_TOKENS


@pytest.mark.parametrize("overlap", first(1, [True, False]))
@pytest.mark.parametrize("topology", ["1U", "1P1D"])
@pytest.mark.parametrize("name", first(1, ["qwen3", "llama"]))
def test_without_a_draft(name: str, topology: str, overlap: bool) -> None:
    cluster = Cluster(runner_of(name, ""), topology, overlap=overlap, chunk_size=24, caches=True)
    check(cluster, prompts_of(name), folder_of(name))


@pytest.mark.parametrize("topology", first(1, ["1P1D", "1U"]))
@pytest.mark.parametrize("draft", ["eagle", "eagle-tree"])
def test_with_a_draft_they_are_those_without(draft: str, topology: str) -> None:
    cluster = Cluster(runner_of("story", draft), topology, caches=True, **DRAFTS[draft])
    check(cluster, prompts_of("story"), STORY)
    kept = sum(worker.planner.counters.get("spec_accepted_0", 0) for worker in cluster.workers)
    assert kept > 10, "no proposal was kept"


@pytest.mark.parametrize("topology", ["1U", "1P1D"])
def test_with_several_draft_layers(topology: str, tmp_path: Path) -> None:
    runner, _ = loaded_mtp(tmp_path, "qwen3", 2)
    cluster = Cluster(runner, topology, num_steps=2, num_pages=256)
    check(cluster, prompts_of("qwen3"), tmp_path)
    assert sum(worker.planner.counters.get("spec_proposed_0", 0) for worker in cluster.workers) > 10


@pytest.mark.parametrize("num_slots", [0, 64])
def test_where_requests_give_way(num_slots: int) -> None:
    prompts = prompts_of("qwen3")
    num_pages = 1 + (2 * max(map(len, prompts)) + NUM_TOKENS) // 4
    cluster = Cluster(
        runner_of("qwen3", ""),
        "1P1D",
        page_size=4,
        num_pages=num_pages,
        num_slots=num_slots,
        chunk_size=24,
        caches=True,
    )
    check(cluster, prompts, folder_of("qwen3"))
    spilled = sum(int(worker.planner.spills.counters["spills"]) for worker in cluster.workers)
    assert cluster.num_retracted or spilled, "the pool is too large to show anything"
