"""Log-probabilities of prompts through whole deployments: right ones, before the answer, also where KV is cached."""

from dataclasses import replace

import pytest

from protocol.logprobs import PromptLogprobsAsked
from protocol.messages_gateway import FirstToken, PromptLogprobs, ToGateway, Tokens
from tests.cluster import Cluster
from tests.decode.driving import VOCAB, expect_exact, greedy, make_cluster, prompt_of
from tests.doubles.hash_model import FakeRunner
from tests.explore.expected import check_prompt_logprobs
from worker.policies import Policies

PROMPT = prompt_of("scored", 30)
ASKED = PromptLogprobsAsked(2)
PARAMS = greedy(5)
both = pytest.mark.parametrize("topology", ["1U", "1P1D"])


def check(cluster: Cluster, name: str, asked: PromptLogprobsAsked = ASKED) -> None:
    logprobs_at = cluster.prompts[name].found
    check_prompt_logprobs([logprobs_at[index] for index in sorted(logprobs_at)], tuple(PROMPT), asked, is_whole=True)


@both
def test_each_chunk_is_told_before_the_answer(topology: str) -> None:
    cluster, told = make_cluster(topology), list[ToGateway]()
    cluster.on_message = told.append
    cluster.assign("a", PROMPT, PARAMS, 2, prompt_logprobs=ASKED)
    cluster.run()
    cluster.close()
    check(cluster, "a")
    expect_exact(cluster, "a", PROMPT, PARAMS, 2)
    firsts = [
        isinstance(message, PromptLogprobs)
        for message in told
        if isinstance(message, PromptLogprobs | FirstToken | Tokens)
    ]
    assert firsts[:6] == [True] * 5 + [False] and firsts.count(True) == 5, (
        "30 tokens in chunks of 7, once for 2 choices"
    )


@both
def test_cached_tokens_are_computed_again(topology: str) -> None:
    cluster = make_cluster(topology, caches=True)
    for name, asked in (("first", None), ("again", ASKED), ("last", None)):
        cluster.assign(name, PROMPT, PARAMS, prompt_logprobs=asked)
        cluster.run()
        expect_exact(cluster, name, PROMPT, PARAMS)
    cluster.close()
    check(cluster, "again")
    worker = cluster.computing[0]
    assert worker.planner.kv_manager.counts().cached > 0
    if topology == "1U":
        assert cluster.cached.get("again") is None and cluster.cached["last"] > 0


@both
@pytest.mark.parametrize("start", [2, 7, 8, 29, 30, 35])
def test_a_retry_gets_what_is_missing(topology: str, start: int) -> None:
    """Its prompt ends with two outputs, which are no tokens of the prompt."""
    cluster = make_cluster(topology)
    replayed = FakeRunner(vocab_size=VOCAB).expected_tokens(PROMPT, 2)
    asked = replace(ASKED, start=start)
    cluster.assign("a", PROMPT, PARAMS, replayed=replayed, prompt_logprobs=asked)
    cluster.run()
    cluster.close()
    check(cluster, "a", asked)
    expect_exact(cluster, "a", PROMPT, PARAMS)


@both
def test_one_that_asks_does_not_wait_for_the_cache(topology: str) -> None:
    """The second one could use the first one's pages. It would gain nothing, so it is computed beside the first."""
    cluster = make_cluster(topology, caches=True, policies=Policies(max_prefill_tokens=1000))
    cluster.assign("a", PROMPT, PARAMS)
    cluster.assign("b", PROMPT, PARAMS, prompt_logprobs=ASKED)
    cluster.assign("c", PROMPT, PARAMS)
    worker, together = cluster.computing[0], set[str]()
    while not cluster.at_rest():
        cluster.turn()
        for launched in worker.planner.in_flight:
            together.add("".join(sorted(chunk.req.request_id for chunk in launched.chunks)))
    cluster.close()
    check(cluster, "b")
    assert "ab" in together and "abc" not in together
