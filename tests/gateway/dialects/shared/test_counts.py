from typing import Any

import pytest

from gateway.dialects.openai.fields import CompletionRequest, parse
from gateway.dialects.openai.read import ask_of_completion
from gateway.dialects.shared.counts import check_counts
from gateway.words.request import Ask
from protocol.errors import BadRequest
from runtime.settings import HttpLimits


def ask(body: dict[str, Any]) -> Ask:
    return ask_of_completion(parse(CompletionRequest, body))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 4}, "n: got 4 choices, expected at most 3"),
        ({"prompt": ["a"] * 6}, "prompt: got 6 prompts, expected at most 5"),
        ({"prompt": [[1]] * 6}, "prompt: got 6 prompts, expected at most 5"),
        ({"stop": ["a"] * 3}, "stop: got 3 strings, expected at most 2"),
        ({"n": 3, "prompt": ["a"] * 4}, "n: got 3 for each of 4 prompts, expected at most 11 in all"),
    ],
)
def test_counts(fields: dict[str, Any], message: str) -> None:
    limits = HttpLimits(max_choices=3, max_prompts=5, max_stop_strings=2, max_choices_in_flight=11)
    check_counts(ask({"prompt": [1] * 100, "n": 3, "stop": ["a", "b"]}), limits)
    check_counts(ask({"prompt": ["a"] * 5, "n": 2, "stop": "a"}), limits)
    with pytest.raises(BadRequest) as caught:
        check_counts(ask({"prompt": "a", **fields}), limits)
    assert caught.value.message == message and caught.value.param == message.partition(":")[0]
