"""What the fields that ask for the prompt need beside them."""

from typing import Any

import pytest

from gateway.schemas import ChatRequest, CompletionRequest, parse
from protocol.errors import BadRequest
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


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"max_tokens": 0}, "max_tokens", "0 without echo, expected at least 1, or 0 beside echo: true"),
        ({"max_tokens": 0, "prompt_logprobs": 1}, "max_tokens", "0 without echo"),
        ({"max_tokens": -1, "echo": True}, "max_tokens", "got -1, expected at least 0"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "got 1 with stream: true"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "got -1, expected at least 0"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "got 21, expected at most 20"),
    ],
)
def test_fields_that_do_not_fit_together(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        parse(CompletionRequest, PROMPT | fields)
    assert caught.value.param == param


def test_a_chat_has_a_token_at_least() -> None:
    with pytest.raises(BadRequest, match="max_tokens: got 0, expected at least 1"):
        parse(ChatRequest, CHAT | {"max_tokens": 0, "echo": True})
