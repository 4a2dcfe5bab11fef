"""What completions and chats ask for, and in which fields."""

from typing import Any

import pytest

from gateway.dialects.openai.fields import ChatRequest, CompletionRequest, GenerationRequest, parse
from gateway.dialects.openai.read import OF_CHATS, OF_COMPLETIONS, ask_of_chat, ask_of_completion
from gateway.words.places import MAX_TOKENS, PROMPT_SCORES, PROMPTS, SHAPE, SOURCE, Fault, Origins, field, named
from gateway.words.request import Ask, Conversation, Grammar, PromptIds, PromptScores, PromptText, Turn
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
    assert conversation.turns == [Turn("user", ("b", "c"), {"name": "me"}), Turn("assistant", None)]


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


def test_the_field_of_a_grammar() -> None:
    ask = chat(structured_outputs={"regex": "a+", "disable_any_whitespace": True})
    assert ask.shape == Grammar("regex", "a+", compact=True)
    assert (written(ask, *SHAPE), written(ask, *SOURCE)) == ("structured_outputs", "structured_outputs.regex")
    with pytest.raises(BadRequest, match=r"^regex: got a grammar beside guided_json, expected one of them"):
        chat(regex="a", guided_json={})


@pytest.mark.parametrize(("kind", "origins"), [(CompletionRequest, OF_COMPLETIONS), (ChatRequest, OF_CHATS)])
def test_each_place_has_the_name_of_a_field(kind: type[GenerationRequest], origins: Origins) -> None:
    assert {origin.path for origin in origins.values()} <= set(kind.model_fields)
    assert all(origin == field(origin.path) for origin in origins.values())
