"""Log-probabilities of prompt tokens in float32 are those of transformers, through whole deployments in one process."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.runner import DraftSource, ModelRunner
from protocol.logprobs import LogprobsAsked, PromptLogprobsAsked
from protocol.messages_gateway import SamplingParams
from testkit.checkpoints import Architecture
from testkit.reference import reference
from tests.cluster import Cluster
from tests.drafts import make_draft
from tests.parity.margins import check_logprobs, check_prompt_logprobs
from tests.parity.serving import model_of, scored_cluster, serve

pytestmark = pytest.mark.slow

NUM_TOKENS = 4
PARAMS = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.8, logprobs=LogprobsAsked(2))
TOPOLOGIES = ("1U", "1P1D")


def asked_of(index: int) -> PromptLogprobsAsked | None:
    """Every fourth request does not ask; the others ask for different numbers of tokens."""
    return None if index % 4 == 3 else PromptLogprobsAsked((5, 0, 20)[index % 3])


def serve_asking(cluster: Cluster, prefix: str = "r", *, closes: bool = True) -> None:
    def asked(index: int) -> dict[str, Any]:
        return {"prompt_logprobs": asked_of(index)}

    serve(cluster, reference("llama").prompts, lambda index: PARAMS, asked, prefix, closes=closes)


def start_of(index: int, prompt: Sequence[int]) -> int:
    """The first token that a retry asks for."""
    return 1 + index * 5 % max(len(prompt) - 1, 1)


def check_scores(cluster: Cluster, prefix: str = "r") -> None:
    """Every token of every prompt, and of every answer."""
    for index, prompt in enumerate(reference("llama").prompts):
        found, asked = cluster.prompts[f"{prefix}{index}"].found, asked_of(index)
        assert sorted(found) == ([] if asked is None else list(range(asked.start, len(prompt))))
        assert asked is None or {len(each.top) for each in found.values()} <= {asked.num_top}
        check_prompt_logprobs(model_of(reference("llama").folder), prompt, found)
        answer = cluster.answers[f"{prefix}{index}", 0]
        check_logprobs(model_of(reference("llama").folder), prompt, answer.ids, answer.logprobs)


@pytest.mark.parametrize(("overlap", "chunk_size"), [(True, 7), (False, 0)])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_they_are_those_of_transformers(topology: str, overlap: bool, chunk_size: int) -> None:
    cluster = scored_cluster(topology, overlap=overlap, chunk_size=chunk_size)
    serve_asking(cluster)
    check_scores(cluster)


@pytest.mark.parametrize(("kind", "layer", "tree"), [("eagle", "qwen3", (1, 0)), ("eagle3", "llama", (3, 8))])
def test_they_are_the_same_with_a_draft(tmp_path: Path, kind: str, layer: Architecture, tree: tuple[int, int]) -> None:
    """Its features are the output of the final norm, or of several layers."""
    target = reference("llama").folder
    draft = DraftSource(kind, make_draft(tmp_path / kind, target, kind, layer))
    runner = ModelRunner.load(target, device="cpu", dtype="float32", draft=draft)
    cluster = Cluster(runner, "1P1D", page_size=16, num_pages=200, chunk_size=9, tree=tree)
    serve_asking(cluster)
    check_scores(cluster)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_cached_prefixes_are_computed_again(topology: str) -> None:
    cluster = scored_cluster(topology, caches=True, page_size=4, num_pages=400)
    for name in ("a", "b"):
        serve_asking(cluster, name, closes=name == "b")
    check_scores(cluster, "a")
    check_scores(cluster, "b")
    if topology == "1U":
        assert set(cluster.cached) == {f"b{index}" for index in range(len(cluster.prompts) // 2) if not asked_of(index)}


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_retry_asks_only_for_what_is_missing(topology: str) -> None:
    cluster = scored_cluster(topology)
    prompts = reference("llama").prompts
    whole = scored_cluster("1U")
    serve(whole, prompts, lambda index: PARAMS)

    def missing(index: int) -> dict[str, Any]:
        replayed = whole.answers[f"r{index}", 0].ids[: index % NUM_TOKENS]
        return {"replayed": replayed, "prompt_logprobs": PromptLogprobsAsked(3, start_of(index, prompts[index]))}

    serve(cluster, prompts, lambda index: PARAMS, missing)
    for index, prompt in enumerate(prompts):
        found = cluster.prompts[f"r{index}"].found
        assert sorted(found) == list(range(start_of(index, prompt), len(prompt)))
        check_prompt_logprobs(model_of(reference("llama").folder), prompt, found)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_of_several_choices_the_prompt_is_scored_once(topology: str) -> None:
    cluster = scored_cluster(topology)
    prompt, asked = reference("llama").prompts[0], PromptLogprobsAsked(2)
    one_token = replace(PARAMS, max_tokens=1)
    cluster.assign("many", list(prompt), PARAMS, 3, prompt_logprobs=asked)
    cluster.assign("short", list(prompt), one_token, 2, prompt_logprobs=asked)
    pieces = list[str]()
    cluster.on_message = lambda message: pieces.append(type(message).__name__)
    cluster.run()
    cluster.close()
    for name in ("many", "short"):
        assert sorted(cluster.prompts[name].found) == list(range(1, len(prompt)))
        check_prompt_logprobs(model_of(reference("llama").folder), prompt, cluster.prompts[name].found)
    assert pieces.count("PromptLogprobs") == 2 * -(-(len(prompt) - 1) // 32), "one for each chunk"
