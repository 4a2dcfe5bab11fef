"""What servers tell of the tokens of a prompt, and what they tell that is of no use."""

import json
from typing import Any

import pytest

from loadtest.http_exchange import Server
from loadtest.verify.judge import Place
from loadtest.verify.scoring import ServerScorer, places_of
from runtime.clock import MonotonicClock
from tests.loadtest.verify.hash_server import hashing, tops_after


def told(**choice: Any) -> bytes:
    return json.dumps({"choices": [choice]}).encode()


def test_both_ways_tell_the_same() -> None:
    lists = [None, {"7": {"logprob": -1.0}, "9": {"logprob": -0.5}}, {"8": {"logprob": -0.2}}]
    expected = [Place(-1.0, -0.5), Place(-0.2, -0.2)]
    assert places_of("prompt_logprobs", told(prompt_logprobs=lists), 1, [7, 8]) == expected
    echoed = {"token_logprobs": [None, -1.0, -0.2, -3.0], "top_logprobs": [None, {"x": -0.5}, {"y": -0.2}, {}]}
    assert places_of("echo", told(logprobs=echoed), 1, [7, 8]) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", told(), told(prompt_logprobs=None), told(prompt_logprobs=[None, {"7": 1}]),
        told(prompt_logprobs=[None, {"6": {"logprob": -1.0}}, None]), told(prompt_logprobs=[None]),
    ],
)  # fmt: skip
def test_what_is_of_no_use_is_none(body: bytes) -> None:
    assert places_of("prompt_logprobs", body, 1, [7, 8]) is None
    assert places_of("echo", body, 1, [7, 8]) is None


async def test_a_server_scores_what_it_would_say() -> None:
    async with hashing() as server:
        scorer = ServerScorer(server, MonotonicClock(), "prompt_logprobs", {"model": "m"}, 30.0)
        best = next(iter(tops_after([5, 6])))
        assert await scorer.score([5, 6], [best, 3]) == [Place(-0.1, -0.1), Place(-50.0, -0.1)]


async def test_nobody_there_scores_nothing() -> None:
    scorer = ServerScorer(Server("127.0.0.1", 1), MonotonicClock(), "echo", {}, 5.0)
    assert await scorer.score([5, 6], [7]) is None
