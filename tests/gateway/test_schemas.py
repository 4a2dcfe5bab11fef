import sys
from types import FrameType
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.schemas import ChatRequest, CompletionRequest, check_counts, parse
from gateway.strict_json import MAX_DEPTH, parse_json
from protocol.errors import BadRequest
from runtime.settings import HttpLimits


def test_json() -> None:
    assert parse_json('{"a": [1, 2.5, "\\ud83d\\ude00é\\u0000", null, true]}'.encode()) == {
        "a": [1, 2.5, "\U0001f600é\0", None, True]
    }
    assert parse_json(b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)) is not None


def test_null_and_unknown_fields_mean_nothing() -> None:
    body = {"prompt": "a", "unheard_of": {"x": 1}, **dict.fromkeys(CompletionRequest.model_fields, None)}
    assert parse(CompletionRequest, body | {"prompt": "a"}).model_dump(exclude_none=True) == {"prompt": "a"}


def test_variables_of_the_chat_template() -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
    assert parse(ChatRequest, body).template_variables == {}
    low = body | {"reasoning_effort": "low"}
    assert parse(ChatRequest, low).template_variables == {"reasoning_effort": "low"}
    assert parse(ChatRequest, low | {"chat_template_kwargs": {"a": 1}}).template_variables == {
        "reasoning_effort": "low",
        "a": 1,
    }
    high = {"chat_template_kwargs": {"reasoning_effort": "high"}}
    assert parse(ChatRequest, low | high).template_variables == {"reasoning_effort": "high"}


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
    check_counts(parse(CompletionRequest, {"prompt": [1] * 100, "n": 3, "stop": ["a", "b"]}), limits)
    check_counts(parse(CompletionRequest, {"prompt": ["a"] * 5, "n": 2, "stop": "a"}), limits)
    with pytest.raises(BadRequest) as caught:
        check_counts(parse(CompletionRequest, {"prompt": "a", **fields}), limits)
    assert caught.value.message == message and caught.value.param == message.partition(":")[0]


@pytest.mark.parametrize(
    "body", [{"prompt": [1.5] * 100_000}, {"prompt": "a", "stop": [1] * 100_000}, {"prompt": [[[]]] * 100_000}]
)
def test_a_list_of_faults_is_one_fault(body: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(CompletionRequest, body)
    cause = caught.value.__cause__
    assert isinstance(cause, ValidationError) and cause.error_count() <= 5


def test_other_threads_can_run_between_two_lists_of_token_ids() -> None:
    """Which they can where Python runs: pydantic alone would keep the interpreter until it has seen all of them."""
    calls = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    body, before = {"prompt": [[1, 2]] * 100}, sys.getprofile()
    sys.setprofile(note)
    try:
        parsed = parse(CompletionRequest, body)
    finally:
        sys.setprofile(before)
    assert parsed.prompt == body["prompt"] and len(calls) >= 100
