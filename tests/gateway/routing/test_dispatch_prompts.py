"""Requests that ask for log-probabilities of their prompts: no token counts before these are whole."""

import pytest

from protocol.logprobs import PromptLogprobsAsked, TokenLogprob, of_tokens
from protocol.messages_gateway import Assign, PromptLogprobs, RequestFailed, Role
from tests.gateway.client import Client
from tests.gateway.control_bench import PROMPT, ControlBench

ASKED = PromptLogprobsAsked()


def tell(bench: ControlBench, assign: Assign, *places: int, by: str = "u0") -> None:
    """The worker tells of these tokens of the prompt."""
    scored = of_tokens(tuple(TokenLogprob(-float(place), 1, ()) for place in places))
    bench.say(by, PromptLogprobs(assign.request_id, assign.attempt, places[0], scored))


def pairs(*prefills: str) -> tuple[ControlBench, Client, Assign]:
    """A request at d0 and the first prefill worker; the others join later."""
    bench = ControlBench()
    for worker_id in prefills[:1]:
        bench.join(worker_id, Role.PREFILL)
    bench.join("d0", Role.DECODE)
    client, assign = bench.ask(prompt_logprobs=ASKED)
    for worker_id in prefills[1:]:
        bench.join(worker_id, Role.PREFILL)
    return bench, client, assign


def test_tokens_wait_for_the_prompt() -> None:
    bench = ControlBench("u0")
    client, assign = bench.ask(n=2, prompt_logprobs=ASKED)
    assert assign.prompt_logprobs == ASKED
    bench.tokens(assign, 0, 0, 11, cached=1)
    tell(bench, assign, 1)
    bench.tokens(assign, 1, 0, 21, 22, finish="stop")
    bench.tokens(assign, 0, 1, 12)
    assert client.tokens == [[], []]
    tell(bench, assign, 1, 2)
    assert client.tokens == [[11, 12], [21, 22]]
    bench.tokens(assign, 0, 2, 13, finish="stop")
    assert client.tokens[0] == [11, 12, 13] and client.finish == ["stop", "stop"]
    bench.expect_rest()


def test_an_attempt_that_fails_leaves_what_it_has_told() -> None:
    bench = ControlBench("u0", "u1")
    client, first = bench.ask(prompt_logprobs=ASKED)
    tell(bench, first, 1)
    bench.tokens(first, 0, 0, 11)
    bench.say("u0", RequestFailed("r", 0, "unavailable", "broken"))
    again = bench.assigns[-1]
    assert (again.prompt_logprobs, again.num_replayed) == (PromptLogprobsAsked(0, 2), 0)
    tell(bench, first, 2)
    bench.tokens(again, 0, 0, 11, by="u1")
    assert client.tokens == [[]], "what the first attempt tells now does not count"
    tell(bench, again, 2, by="u1")
    bench.tokens(again, 0, 1, 12, by="u1", finish="stop")
    bench.expect_end(client, [11, 12])


def test_behind_a_whole_prompt_a_retry_asks_for_nothing() -> None:
    bench = ControlBench("u0", "u1")
    client, first = bench.ask(prompt_logprobs=ASKED)
    tell(bench, first, 1, 2)
    bench.tokens(first, 0, 0, 11)
    bench.lose("u0")
    again = bench.assigns[-1]
    assert (again.prompt_logprobs, again.prompt_ids) == (None, (*PROMPT, 11))
    bench.tokens(again, 0, 1, 12, by="u1", finish="stop")
    bench.expect_end(client, [11, 12])


@pytest.mark.parametrize("is_whole", [False, True])
def test_prefill_is_lost_when_decode_has_begun(is_whole: bool) -> None:
    bench, client, first = pairs("p0", "p1")
    tell(bench, first, 1, 2, by="p0") if is_whole else tell(bench, first, 1, by="p0")
    bench.tokens(first, 0, 0, 11, by="d0")
    bench.lose("p0")
    if is_whole:
        assert bench.assigns == [first] and bench.cancels == [], "decode has all KV"
        again = first
    else:
        [_, again] = bench.assigns
        [cancel] = bench.cancels
        assert cancel.attempt == 0 and client.tokens == [[]]
        assert again.prefill is not None and again.prefill.worker_id == "p1"
        assert again.prompt_logprobs == PromptLogprobsAsked(0, 2)
        tell(bench, again, 2, by="p1")
        bench.tokens(again, 0, 0, 11, by="d0")
    bench.tokens(again, 0, 1, 12, by="d0", finish="stop")
    bench.expect_end(client, [11, 12])


def test_a_choice_is_preempted_before_the_prompt_is_whole() -> None:
    bench = ControlBench("u0")
    client, first = bench.ask(n=2, prompt_logprobs=ASKED)
    bench.tokens(first, 0, 0, 11)
    bench.tokens(first, 1, 0, 21)
    bench.preempt(first, 1)
    again = bench.assigns[-1]
    assert (again.first_choice, again.num_replayed, again.prompt_logprobs) == (1, 0, ASKED)
    tell(bench, first, 1, 2)
    assert client.tokens == [[11], []], "the other choice begins again"
    tell(bench, again, 1, 2)
    bench.tokens(again, 1, 0, 21, finish="stop")
    bench.tokens(first, 0, 1, 12, finish="stop")
    bench.expect_end(client, [11, 12], [21])


@pytest.mark.parametrize("places", [(2,), (1, 2, 3)])
def test_nonsense_fails_the_request(places: tuple[int, ...]) -> None:
    bench = ControlBench("u0")
    client, assign = bench.ask(prompt_logprobs=ASKED)
    tell(bench, assign, *places)
    assert client.error is not None and client.error.code == "internal_error"
    bench.expect_rest()


def test_nobody_has_asked() -> None:
    bench = ControlBench("u0")
    client, assign = bench.ask()
    assert assign.prompt_logprobs is None
    tell(bench, assign, 1)
    assert client.error is not None
    bench.expect_rest()
