"""What the fields that ask for the prompt need beside them."""

from typing import Any

import pytest

from gateway.schemas import ChatRequest, CompletionRequest, parse
from protocol.logprobs import PromptLogprobsAsked

PROMPT: dict[str, Any] = {"prompt": "a"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, None),
        ({"echo": True}, None),
        ({"logprobs": 3}, None),
        ({"echo": False, "logprobs": 3}, None),
        ({"echo": True, "logprobs": 3}, 3),
        ({"echo": True, "logprobs": 0}, 0),
        ({"prompt_logprobs": 0}, 0),
        ({"prompt_logprobs": 2, "logprobs": 3}, 2),
        ({"echo": True, "prompt_logprobs": 2, "logprobs": 3}, 3),
        ({"echo": True, "prompt_logprobs": 7, "logprobs": 3}, 7),
    ],
)
def test_what_workers_are_asked_for(fields: dict[str, Any], asked: int | None) -> None:
    expected = None if asked is None else PromptLogprobsAsked(asked)
    assert parse(CompletionRequest, PROMPT | fields).prompt_logprobs_asked == expected


def test_the_echo_of_a_chat_tells_no_tokens() -> None:
    asked = parse(ChatRequest, CHAT | {"echo": True, "logprobs": True, "top_logprobs": 5}).prompt_logprobs_asked
    assert asked is None
    assert parse(ChatRequest, CHAT | {"prompt_logprobs": 4}).prompt_logprobs_asked == PromptLogprobsAsked(4)
