"""What completions and chats ask for, and in which fields."""

from typing import Any

import pytest

from gateway.dialects.openai.conversation_fields import OF_ASSISTANTS
from gateway.dialects.openai.fields import ChatRequest, CompletionRequest, GenerationRequest, parse
from gateway.dialects.openai.read import OF_CHATS, OF_COMPLETIONS, ask_of_chat, ask_of_completion
from gateway.words.places import (
    CHOICE,
    MAX_TOKENS,
    PROMPT_SCORES,
    PROMPTS,
    REASONING_TOKENS,
    SHAPE,
    SOURCE,
    TOOLS,
    TURNS,
    Fault,
    Origins,
    field,
    named,
)
from gateway.words.request import (
    Ask,
    Call,
    Choice,
    Conversation,
    Grammar,
    Named,
    PromptIds,
    PromptScores,
    PromptText,
    Reasoning,
    Result,
    Text,
    Tool,
    Turn,
)
from protocol.errors import BadRequest


def completion(**fields: Any) -> Ask:
    return ask_of_completion(parse(CompletionRequest, {"prompt": "a", **fields}))


def chat(**fields: Any) -> Ask:
    return ask_of_chat(parse(ChatRequest, {"messages": [{"role": "user", "content": "a"}], **fields}))


def written(ask: Ask, *place: str | int) -> str:
    """A place as the client writes it at the beginning of an error."""
    with pytest.raises(Fault) as caught, named(ask.origins):
        raise Fault(place, place)
    return caught.value.message


@pytest.mark.parametrize(
    ("prompt", "prompts", "last"),
    [
        ("a", [PromptText("a")], "prompt"),
        ([1, 2], [PromptIds([1, 2])], "prompt"),
        (["a"], [PromptText("a")], "prompt"),
        (["a", "b"], [PromptText("a"), PromptText("b")], "prompt[1]"),
        ([[1], [2]], [PromptIds([1]), PromptIds([2])], "prompt[1]"),
    ],
)
def test_prompts_of_every_kind(prompt: Any, prompts: list[Any], last: str) -> None:
    ask = completion(prompt=prompt)
    assert ask.prompts == prompts and written(ask, *PROMPTS, len(prompts) - 1) == last


def test_turns_keep_what_only_templates_know() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    messages = [{"role": "user", "content": parts, "name": "me"}, {"role": "assistant", "content": None}]
    [conversation] = chat(messages=messages, chat_template="x").prompts
    assert isinstance(conversation, Conversation) and conversation.template == "x" and not conversation.add_special
    assert conversation.turns == [Turn("user", (Text("b"), Text("c")), {"name": "me"}), Turn("assistant", ())]


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"a": 1}}, {"reasoning_effort": "low", "a": 1}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
            {"reasoning_effort": "high"},
        ),
    ],
)
def test_variables_of_the_chat_template(fields: dict[str, Any], variables: dict[str, Any]) -> None:
    [conversation] = chat(**fields).prompts
    assert isinstance(conversation, Conversation) and conversation.variables == variables


@pytest.mark.parametrize(
    ("fields", "scores", "name"),
    [
        ({}, None, "echo"),
        ({"echo": True}, None, "echo"),
        ({"logprobs": 3}, None, "echo"),
        ({"echo": False, "logprobs": 3}, None, "echo"),
        ({"echo": True, "logprobs": 3}, PromptScores(3, 0, 4), "echo"),
        ({"echo": True, "logprobs": 0, "n": 2}, PromptScores(0, 0, 2), "echo"),
        ({"prompt_logprobs": 0}, PromptScores(0, 0, 1), "prompt_logprobs"),
        ({"prompt_logprobs": 2, "logprobs": 3}, PromptScores(2, 0, 3), "prompt_logprobs"),
        ({"echo": True, "prompt_logprobs": 2, "logprobs": 3, "n": 2}, PromptScores(3, 0, 14), "prompt_logprobs"),
        ({"echo": True, "prompt_logprobs": 7, "logprobs": 3}, PromptScores(7, 0, 12), "prompt_logprobs"),
    ],
)
def test_scores_of_a_completions_prompt(fields: dict[str, Any], scores: PromptScores | None, name: str) -> None:
    ask = completion(**fields)
    assert ask.prompt_scores == scores and written(ask, *PROMPT_SCORES) == name


def test_the_echo_of_a_chat_tells_no_tokens() -> None:
    assert chat(echo=True, logprobs=True, top_logprobs=5).prompt_scores is None
    assert chat(prompt_logprobs=4, n=3).prompt_scores == PromptScores(4, 0, 5), "one list for all choices"


@pytest.mark.parametrize(
    ("fields", "max_tokens", "name"),
    [
        ({}, None, "max_tokens"),
        ({"max_tokens": 5}, 5, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7, "max_completion_tokens"),
    ],
)
def test_the_field_that_limits_an_answer(fields: dict[str, Any], max_tokens: int | None, name: str) -> None:
    assert completion(**fields).default_tokens == 16 and chat(**fields).default_tokens is None
    for ask in (completion(**fields), chat(**fields)):
        assert ask.max_tokens == max_tokens and written(ask, *MAX_TOKENS) == name


@pytest.mark.parametrize(
    ("fields", "budget", "name"),
    [
        ({}, None, "thinking_token_budget"),
        ({"thinking_token_budget": 5}, 5, "thinking_token_budget"),
        ({"thinking_budget": 0}, 0, "thinking_budget"),
        ({"thinking_token_budget": 0, "thinking_budget": 7}, 0, "thinking_token_budget"),
        ({"thinking_token_budget": None, "thinking_budget": 7}, 7, "thinking_budget"),
    ],
)
def test_the_field_that_limits_thoughts(fields: dict[str, Any], budget: int | None, name: str) -> None:
    ask = chat(**fields)
    [conversation] = ask.prompts
    assert isinstance(conversation, Conversation) and conversation.reasoning_tokens == budget
    assert written(ask, *REASONING_TOKENS) == name


@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget"])
@pytest.mark.parametrize("value", [-1, 2**31, 1.5, 1.0, True, "5", [], {}])
def test_a_limit_of_thoughts_is_an_integer_that_is_not_negative(name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=f"^{name}: got .*, expected") as caught:
        chat(**{name: value})
    assert caught.value.param == name and "\n" not in caught.value.message


def test_the_field_of_a_grammar() -> None:
    ask = chat(structured_outputs={"regex": "a+", "disable_any_whitespace": True})
    assert ask.shape == Grammar("regex", "a+", compact=True)
    assert (written(ask, *SHAPE), written(ask, *SOURCE)) == ("structured_outputs", "structured_outputs.regex")
    with pytest.raises(BadRequest, match=r"^regex: got a grammar beside guided_json, expected one of them"):
        chat(regex="a", guided_json={})


def conversation(**fields: Any) -> Conversation:
    [only] = chat(**fields).prompts
    assert isinstance(only, Conversation)
    return only


AGENT: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": "b",
        "reasoning_content": "r",
        "reasoning": "r",
        "refusal": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x":  1}'}},
            {"function": {"name": "g", "arguments": {"y": "\u00e9"}}},
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
    {"role": "assistant", "reasoning": "s", "function_call": {"name": "h"}},
    {"role": "function", "name": "h", "content": "e"},
    {"role": "assistant", "content": []},
]


def test_calls_results_and_reasoning_are_parts() -> None:
    calls = (Call("1", "f", '{"x":  1}'), Call("", "g", '{"y": "\u00e9"}'))
    assert conversation(messages=AGENT).turns == [
        Turn("user", (Text("a"),)),
        Turn("assistant", (Reasoning("r"), Text("b"), *calls), {"refusal": None}),
        Turn("tool", (Result("1", "cd"),)),
        Turn("assistant", (Reasoning("s"), Call("", "h", "{}"))),
        Turn("tool", (Result("", "e"),), {"name": "h"}),
        Turn("assistant", (Text(""),)),
    ]


def test_places_of_calls_and_results() -> None:
    ask = chat(messages=AGENT)
    for place, name in (
        ((1, "parts", 2, "arguments"), "messages.1.tool_calls.0.function.arguments"),
        ((1, "parts", 3), "messages.1.tool_calls.1.function"),
        ((1, "parts", 3, "arguments"), "messages.1.tool_calls.1.function.arguments"),
        ((2, "parts", 0, "call_id"), "messages.2.tool_call_id"),
        ((3, "parts", 1, "arguments"), "messages.3.function_call.arguments"),
    ):
        assert written(ask, *TURNS, *place) == name


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOL_FIELDS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "g", "description": None}, "cache_control": {}},
]


def test_tools() -> None:
    found = conversation(tools=TOOL_FIELDS, parallel_tool_calls=False)
    assert found.tools == [Tool("f", "d", SCHEMA, strict=True), Tool("g")] and not found.parallel
    assert conversation(tools=[]).tools == [] and conversation(parallel_tool_calls=None).parallel
    ask = chat(tools=TOOL_FIELDS)
    assert written(ask, *TOOLS, 1, "name") == "tools.1.function.name" and written(ask, *TOOLS) == "tools"
    assert written(ask, *TOOLS, 0, "schema") == "tools.0.function.parameters"


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "none"}}, Named("none")),
    ],
)
def test_the_choice_of_a_tool(given: Any, choice: Choice) -> None:
    ask = chat(tool_choice=given)
    assert conversation(tool_choice=given).choice == choice
    assert (written(ask, *CHOICE), written(ask, *CHOICE, "name")) == ("tool_choice", "tool_choice.function.name")


@pytest.mark.parametrize(
    ("fields", "param", "what"),
    [
        ({"tools": 5}, "tools", "got 5, expected an array"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "is missing"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name", "is missing"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools.0.type", "got 'custom', expected 'function'"),
        (
            {"tools": [*TOOL_FIELDS, {"type": "function", "function": {"name": "h", "parameters": []}}]},
            "tools.2.function.parameters",
            "got [], expected an object",
        ),
        ({"tool_choice": "any"}, "tool_choice", "got 'any', expected 'none', 'auto', 'required' or an object with"),
        ({"tool_choice": 5}, "tool_choice", "got 5, expected 'none', 'auto', 'required' or an object with"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name", "is missing"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "got 'allowed_tools', expected 'function'"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "got 1, expected true or false"),
    ],
)
def test_what_tools_may_not_be(fields: dict[str, Any], param: str, what: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(**fields)
    assert caught.value.param == param and caught.value.message.startswith(f"{param}: {what}")


@pytest.mark.parametrize(
    ("message", "name", "what"),
    [
        ({"tool_calls": [{"a": 1}]}, "tool_calls.0.function", "is missing"),
        ({"tool_calls": [{"function": {}}]}, "tool_calls.0.function.name", "is missing"),
        ({"tool_calls": [{"type": "custom", "function": {"name": "f"}}]}, "tool_calls.0.type", "got 'custom'"),
        ({"tool_calls": {}}, "tool_calls", "got {}, expected an array"),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            "tool_calls.0.function.arguments",
            "got [1], expected the text of a JSON object",
        ),
        ({"role": "user", "content": "a", "reasoning": "b"}, "reasoning", "got 'b', expected it only in a message of"),
        (
            {"role": "tool", "content": "a", "tool_calls": [{"function": {"name": "f"}}]},
            "tool_calls",
            'got [{"function": {"name": "f"}}], expected it only in a message of assistant',
        ),
        ({"reasoning": 5}, "reasoning", "got 5, expected a string"),
        ({"reasoning": "a", "reasoning_content": "b"}, "reasoning", "is another text than reasoning_content"),
        ({"role": "tool", "content": "a", "tool_call_id": 5}, "tool_call_id", "got 5, expected a string"),
    ],
)
def test_what_calls_and_results_may_not_be(message: dict[str, Any], name: str, what: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(messages=[{"role": "user", "content": "a"}, {"role": "assistant", **message}])
    assert caught.value.param == f"messages.1.{name}"
    assert caught.value.message.startswith(f"messages.1.{name}: {what}"), caught.value.message


@pytest.mark.parametrize("empty", [None, "", []])
def test_empty_fields_of_the_assistant_stand_anywhere(empty: Any) -> None:
    names = ("tool_calls",) if empty == [] else ("reasoning", "reasoning_content") if empty == "" else OF_ASSISTANTS
    message = {"role": "user", "content": "a", **dict.fromkeys(names, empty)}
    assert conversation(messages=[message]).turns == [Turn("user", (Text("a"),))]


@pytest.mark.parametrize(("kind", "origins"), [(CompletionRequest, OF_COMPLETIONS), (ChatRequest, OF_CHATS)])
def test_each_place_has_the_name_of_a_field(kind: type[GenerationRequest], origins: Origins) -> None:
    assert {origin.path.partition(".")[0] for origin in origins.values()} <= set(kind.model_fields)
    assert all(origin == field(origin.path) for origin in origins.values())
