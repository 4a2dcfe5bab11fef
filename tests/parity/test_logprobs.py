"""Log-probabilities of real models in float32 are those of transformers, through whole deployments in one process.

test_drafts.py has those of launches with drafts.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from protocol.logprobs import LogprobsAsked
from protocol.messages_gateway import SamplingParams
from testkit.reference import reference
from tests.cluster import Cluster
from tests.parity.margins import check_logprobs
from tests.parity.serving import model_of, scored_cluster, serve

pytestmark = pytest.mark.slow

NUM_TOKENS = 8
PARAMS = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.8, logprobs=LogprobsAsked(5))


def params_of(index: int, num_tokens: int = NUM_TOKENS) -> SamplingParams:
    """Every second request asks for processed ones."""
    asked = LogprobsAsked(5, processed=index % 2 == 1)
    return replace(PARAMS, max_tokens=num_tokens, seed=index, logprobs=asked)


def check_answers(cluster: Cluster, num_tokens: int = NUM_TOKENS) -> None:
    """Every token of every answer."""
    for index, prompt in enumerate(reference("llama").prompts):
        answer = cluster.answers[f"r{index}", 0]
        assert sorted(answer.logprobs) == list(range(num_tokens))
        temperature = PARAMS.temperature if index % 2 else 1
        check_logprobs(model_of(reference("llama").folder), prompt, answer.ids, answer.logprobs, temperature)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("topology", ["1U", "1P1D"])
def test_logprobs_are_those_of_transformers(topology: str, overlap: bool) -> None:
    cluster = scored_cluster(topology, overlap=overlap)
    serve(cluster, reference("llama").prompts, params_of)
    check_answers(cluster)


@pytest.mark.parametrize("num_host_pages", [0, 200])
@pytest.mark.parametrize("topology", ["1U", "1P1D"])
def test_logprobs_of_preempted_requests(topology: str, num_host_pages: int) -> None:
    num_tokens, prompts = 40, reference("llama").prompts
    longest = max(map(len, prompts)) + num_tokens
    cluster = scored_cluster(topology, page_size=4, num_pages=3 + -(-longest // 4), num_host_pages=num_host_pages)
    serve(cluster, prompts, partial(params_of, num_tokens=num_tokens))
    worker = cluster.unifieds[0] if cluster.unifieds else next(iter(cluster.decodes.values()))
    num_spills = worker.stats().counters.get("spills", 0)
    assert num_spills > 0 if num_host_pages else cluster.num_preempted > 0
    check_answers(cluster, num_tokens)


@pytest.mark.parametrize("topology", ["1U", "1P1D"])
def test_a_retry_tells_only_what_is_new(topology: str) -> None:
    whole = scored_cluster(topology)
    prompts = reference("llama").prompts
    serve(whole, prompts, params_of)

    def known(index: int) -> dict[str, Any]:
        return {"replayed": whole.answers[f"r{index}", 0].ids[: 1 + index % (NUM_TOKENS - 1)]}

    again = scored_cluster(topology)
    serve(again, prompts, params_of, known)
    for index, prompt in enumerate(prompts):
        answer = again.answers[f"r{index}", 0]
        assert answer.ids == whole.answers[f"r{index}", 0].ids
        assert sorted(answer.logprobs) == list(range(1 + index % (NUM_TOKENS - 1), NUM_TOKENS))
        check_logprobs(
            model_of(reference("llama").folder),
            prompt,
            answer.ids,
            answer.logprobs,
            PARAMS.temperature if index % 2 else 1,
        )
