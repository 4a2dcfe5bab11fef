"""The gateway reads bodies of /tokenize and /detokenize, and refuses bad ones by field."""

import json
from typing import Any

import pytest

from gateway.dialects.openai.tokenize_fields import parse_detokenize, parse_tokenize
from gateway.dialects.openai.tokenize_routes import ask_of_tokens
from gateway.words.request import Conversation, PromptText, Text, Tool, Turn
from protocol.errors import BadRequest

USER = {"role": "user", "content": "a"}


def asked(**fields: Any) -> PromptText | Conversation:
    [prompt] = ask_of_tokens(parse_tokenize(json.dumps(fields).encode())).prompts
    assert isinstance(prompt, PromptText | Conversation)
    return prompt


def test_a_prompt_gets_special_tokens_and_a_chat_does_not_unless_asked() -> None:
    assert asked(prompt="a") == asked(prompt="a", add_special_tokens=True) == PromptText("a", add_special=True)
    assert asked(prompt="", add_special_tokens=False) == PromptText("", add_special=False)
    assert asked(messages=[USER]) == Conversation([Turn("user", (Text("a"),))], tools=[])
    assert asked(messages=[USER], add_special_tokens=True).add_special


def test_the_fields_of_a_chat_are_those_that_make_its_prompt() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    found = asked(
        messages=[USER], tools=[tool], tool_choice="none", chat_template="x", chat_template_kwargs={"b": 1},
        reasoning_effort="low", add_generation_prompt=False,
    )  # fmt: skip
    assert isinstance(found, Conversation)
    assert (found.tools, found.choice, found.template) == ([Tool("f")], "none", "x")
    assert found.variables == {"b": 1, "reasoning_effort": "low"} and not found.opens_answer


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": [USER]}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [USER], "continue_final_message": True}, "continue_final_message"),
        ({"messages": [USER], "return_token_str": True}, "return_token_str"),
    ],
)
def test_what_cannot_be_tokenised(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_tokenize(json.dumps(body).encode())
    assert caught.value.param == param


def test_only_a_list_of_ids_can_be_detokenised() -> None:
    assert parse_detokenize(b'{"tokens": [1, 2], "model": null}').tokens == [1, 2]
    for tokens in ("5", "[true]", "[-1]", "[[1]]", "null", "[" + "1," * 1_000_000 + "1]"):
        with pytest.raises(BadRequest) as caught:
            parse_detokenize(f'{{"tokens": {tokens}}}'.encode())
        assert caught.value.param == "tokens"
