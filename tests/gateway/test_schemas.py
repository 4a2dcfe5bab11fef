import sys
from types import FrameType
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.schemas import ChatRequest, CompletionRequest, check_counts, parse
from gateway.template_messages import for_template
from protocol.errors import BadRequest
from runtime.settings import HttpLimits

ROLES = "'system', 'developer', 'user', 'assistant', 'tool' or 'function'"


def refusal(kind: type[CompletionRequest] | type[ChatRequest], body: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(kind, body)
    return caught.value


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]], ""])
def test_prompts(prompt: Any) -> None:
    assert parse(CompletionRequest, {"prompt": prompt}).prompt == prompt


@pytest.mark.parametrize("prompt", [None, 5, [], [1, "a"], [True], [1.5], [-1], {"a": 1}, [[1], "a"], [[1.5]]])
def test_wrong_prompts(prompt: Any) -> None:
    error = refusal(CompletionRequest, {"prompt": prompt})
    assert error.param == "prompt" and error.message.startswith("prompt: got ") and "list of token ids" in error.message


def test_a_missing_prompt() -> None:
    assert refusal(CompletionRequest, {}).message.startswith("prompt: is missing, expected a string, a list of strings")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", "5"),
        ("max_completion_tokens", -1),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("temperature", True),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_p", float("inf")),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.5),
        ("seed", 1.5),
        ("seed", 2**63),
        ("n", 0),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", 5),
        ("stop_token_ids", [1] * 1025),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 5),
        ("ignore_eos", 1),
        ("stream", "true"),
        ("stream_options", True),
        ("return_token_ids", "yes"),
        ("model", 5),
        ("user", 5),
        ("cache_salt", 5),
        ("cache_salt", ["a"]),
        ("cache_salt", ""),
        ("cache_salt", "a" * 257),
        ("priority", 101),
        ("priority", -101),
        ("priority", "high"),
        ("priority", True),
        ("priority", 1.5),
    ],
)
def test_wrong_values_are_named(field: str, value: Any) -> None:
    error = refusal(CompletionRequest, {"prompt": "a", field: value})
    assert error.param == field
    assert error.message.startswith(field) and "expected " in error.message, error.message
    assert any(word in error.message for word in ("got ", "is empty", "has 1025 items", "has 257 characters")), (
        error.message
    )


def test_null_and_unknown_fields_mean_nothing() -> None:
    body = {"prompt": "a", "unheard_of": {"x": 1}, **dict.fromkeys(CompletionRequest.model_fields, None)}
    assert parse(CompletionRequest, body | {"prompt": "a"}).model_dump(exclude_none=True) == {"prompt": "a"}


def test_whole_numbers_are_temperatures() -> None:
    assert parse(CompletionRequest, {"prompt": "a", "temperature": 1}).temperature == 1.0


@pytest.mark.parametrize("body", [None, [], "a", 5, True])
def test_the_body_is_an_object(body: Any) -> None:
    assert "expected a JSON object" in refusal(CompletionRequest, body).message


def test_content_is_text_or_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "x": 1}]
    request = parse(
        ChatRequest, {"messages": [{"role": "user", "content": parts, "name": "me"}, {"role": "assistant"}]}
    )
    assert [for_template(message) for message in request.messages] == [
        {"role": "user", "content": "ab", "name": "me"},
        {"role": "assistant", "content": None},
    ]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ([{"content": "a"}], "messages.0.role"),
        ([{"role": 5, "content": "a"}], "messages.0.role"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages.0.content.0.type",
        ),
        (
            [{"role": "tool", "content": "a"}, {"role": "user", "content": [{"type": "text"}]}],
            "messages.1.content.0.text",
        ),
        (["hi"], "messages.0"),
    ],
)
def test_a_fault_in_the_messages_names_its_place(messages: Any, param: str) -> None:
    error = refusal(ChatRequest, {"messages": messages})
    assert error.param == param and error.message.startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages: is empty, expected at least one message"),
        ({"messages": [{"role": "wizard"}]}, f"messages.0.role: got 'wizard', expected {ROLES}"),
        ({"messages": [{"role": 5}]}, f"messages.0.role: got 5, expected {ROLES}"),
        ({"messages": ["hi"]}, "messages.0: got 'hi', expected an object"),
        ({"stop": ["a", ""]}, "stop.1: is empty, expected at least one character"),
        ({"messages": [{"role": "assistant"}] * 10_001}, "messages: has 10001 items, expected at most 10000"),
        ({"stop": 5}, "stop: got 5, expected a string or a list of strings"),
        ({"temperature": 3}, "temperature: got 3, expected at most 2.0"),
        ({"temperature": float("nan")}, "temperature: got NaN, expected a finite number"),
        ({"n": True}, "n: got true, expected an integer"),
        ({"n": {"a": [None, "é\n"]}}, 'n: got {"a": [null, "\\u00e9\\n"]}, expected an integer'),
        ({"stream_options": 5}, "stream_options: got 5, expected an object"),
        (
            {"stream_options": {"include_usage": True}},
            'stream_options: got {"include_usage": true} without stream, expected it only beside stream: true',
        ),
    ],
)
def test_messages_say_what_was_expected(fields: dict[str, Any], message: str) -> None:
    assert refusal(ChatRequest, {"messages": [{"role": "user", "content": "a"}], **fields}).message == message


@pytest.mark.parametrize("stream", [None, False])
def test_options_of_a_stream_need_a_stream(stream: bool | None) -> None:
    body = {"prompt": "a", "stream_options": {"include_usage": True}}
    assert refusal(CompletionRequest, body | {"stream": stream}).param == "stream_options"
    options = parse(CompletionRequest, body | {"stream": True}).stream_options
    assert options is not None and options.include_usage
    assert parse(CompletionRequest, body | {"stream_options": None}).stream_options is None


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool"])
@pytest.mark.parametrize("rest", [{}, {"content": None}])
def test_who_speaks_says_something(role: str, rest: dict[str, Any]) -> None:
    error = refusal(ChatRequest, {"messages": [{"role": "assistant"}, {"role": role, **rest}]})
    assert error.message == "messages.1.content: is missing, expected a string or a list of text parts"
    assert error.param == "messages.1.content"


def test_an_assistant_that_called_tools_may_say_nothing() -> None:
    messages: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": []}]
    assert parse(ChatRequest, {"messages": messages}).messages[0].content is None


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
    assert refusal(ChatRequest, body | {"reasoning_effort": 5}).message.endswith("got 5, expected a string")


def test_a_wrong_part_is_located() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "image_url"}]
    message = refusal(ChatRequest, {"messages": [{"role": "user", "content": content}]}).message
    assert message.startswith("messages.0.content.1.type: got 'image_url'"), message


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
