from typing import Any

import pytest

from gateway.generation.conversations import (
    MAX_SCHEMA_CHARS,
    MAX_TOOLS,
    check_budget,
    check_conversation,
    check_format,
    no_budget,
)
from gateway.text.channels.formats import HERMES, SEED_THINK, THINK
from gateway.text.channels.markers import Markers
from gateway.text.channels.readers import Format
from gateway.text.chat_template import ChatTemplates
from gateway.words.places import CHOICE, REASONING_TOKENS, TOOLS, TURNS, Fault, Place
from gateway.words.request import Call, Choice, Conversation, Named, Result, Text, Tool, Turn

USER = Turn("user", (Text("a"),))
ADD = Tool("add", "It adds.", {"type": "object"})
BARE = "{% for m in messages %}{{ m.content }}{% endfor %}"
TOOLS_ONLY = "{{ tools | tojson }}" + BARE
BOTH = TOOLS_ONLY + "{% for m in messages %}{{ m.tool_calls }}{% endfor %}"


def fault_of(conversation: Conversation) -> Fault:
    with pytest.raises(Fault) as caught:
        check_conversation(conversation)
    return caught.value


def calling(*call_ids: str) -> Turn:
    return Turn("assistant", tuple(Call(call_id, "add", "{}") for call_id in call_ids))


def result(call_id: str) -> Turn:
    return Turn("tool", (Result(call_id, "5"),))


@pytest.mark.parametrize("name", ["", "a b", "a\n", "\u00e9", "a" * 129, "f()", "a/b"])
def test_names_that_no_tool_may_have(name: str) -> None:
    fault = fault_of(Conversation([USER], tools=[ADD, Tool(name)]))
    assert fault.at == (*TOOLS, 1, "name") and "expected 1 to 128 letters, digits" in fault.message
    fault = fault_of(Conversation([USER, Turn("assistant", (Text("a"), Call("1", name, "{}")))]))
    assert fault.at == (*TURNS, 1, "parts", 1, "name") and "expected 1 to 128 letters, digits" in fault.message


def test_names_that_tools_may_have() -> None:
    check_conversation(Conversation([USER], tools=[Tool("a" * 128), Tool("A-b_c.9"), Tool("a")]))


def test_a_name_twice() -> None:
    fault = fault_of(Conversation([USER], tools=[ADD, Tool("b"), Tool("add")]))
    assert fault.at == (*TOOLS, 2, "name") and "got 'add' twice" in fault.message


def test_how_many_tools_there_may_be() -> None:
    tools = [Tool(f"t{number}") for number in range(MAX_TOOLS + 1)]
    check_conversation(Conversation([USER], tools=tools[:-1]))
    fault = fault_of(Conversation([USER], tools=tools))
    assert fault.at == TOOLS and f"has {MAX_TOOLS + 1} items, expected at most {MAX_TOOLS}" in fault.message


def test_how_long_their_schemas_may_be() -> None:
    half = {"": "x" * (MAX_SCHEMA_CHARS // 2 - len('{"": ""}'))}
    check_conversation(Conversation([USER], tools=[Tool("a", None, half), Tool("b", None, half)]))
    fault = fault_of(Conversation([USER], tools=[Tool("a", None, half), Tool("b", None, half), Tool("c", None, {})]))
    assert fault.at == (*TOOLS, 2, "schema") and str(MAX_SCHEMA_CHARS) in fault.message


@pytest.mark.parametrize(
    ("choice", "tools", "at"),
    [
        ("required", [], CHOICE),
        (Named("add"), [], CHOICE),
        (Named("sub"), [ADD], (*CHOICE, "name")),
        ("auto", [], None),
        ("none", [], None),
        ("none", [ADD], None),
        ("required", [ADD], None),
        (Named("add"), [Tool("sub"), ADD], None),
    ],
)
def test_a_choice_needs_its_tools(choice: Choice, tools: list[Tool], at: Place | None) -> None:
    conversation = Conversation([USER], tools=tools, choice=choice)
    if at is None:
        check_conversation(conversation)
    else:
        assert fault_of(conversation).at == at


@pytest.mark.parametrize(
    "turns",
    [
        [calling("1", "2"), result("2"), result("1")],
        [calling("1"), result("1"), calling("1"), result("1"), result("1")],
        [calling("1"), USER, result("1")],
        [result("")],
        [calling("")],
    ],
)
def test_a_result_behind_its_call(turns: list[Turn]) -> None:
    check_conversation(Conversation([USER, *turns]))


@pytest.mark.parametrize(
    ("turns", "place", "what"),
    [
        ([result("1")], 1, "no message has a call with this id"),
        ([calling("1"), result("1"), result("2")], 3, "no message has a call with this id"),
        ([result("1"), calling("1")], 1, "the call is in a later message"),
        ([calling("1"), result("2"), USER, calling("2")], 2, "the call is in a later message"),
    ],
)
def test_a_result_without_its_call_before(turns: list[Turn], place: int, what: str) -> None:
    fault = fault_of(Conversation([USER, *turns]))
    assert fault.at == (*TURNS, place, "parts", 0, "call_id") and what in fault.message


def test_a_call_in_the_same_turn_is_not_before_its_result() -> None:
    turn = Turn("user", (Result("1", "a"), Call("1", "add", "{}")))
    assert fault_of(Conversation([turn])).at == (*TURNS, 0, "parts", 0, "call_id")


WITH_TOOLS = Conversation([USER], tools=[ADD])
WITH_CALL = Conversation([USER, Turn("assistant", (Text("b"), Call("", "add", "{}")))])


@pytest.mark.parametrize(
    ("conversation", "source", "tool_format", "at", "words"),
    [
        (WITH_TOOLS, BOTH, None, TOOLS, ("--chat-template", "format of calls that Baton knows")),
        (WITH_TOOLS, BARE, "hermes", TOOLS, ("--chat-template", "the format hermes")),
        (WITH_TOOLS, BOTH, "hermes", None, ()),
        (WITH_TOOLS, TOOLS_ONLY, "hermes", None, ()),
        (WITH_CALL, BOTH, None, None, ()),
        (WITH_CALL, TOOLS_ONLY, None, (*TURNS, 1, "parts", 1), ("--chat-template", "renders no calls")),
        (Conversation([USER]), BARE, None, None, ()),
    ],
)
def test_the_template_must_render_what_is_there(
    conversation: Conversation, source: str, tool_format: Any, at: Place | None, words: tuple[str, ...]
) -> None:
    templates = ChatTemplates({"default": source}, {})
    if at is None:
        check_format(conversation, templates, tool_format)
        return
    with pytest.raises(Fault) as caught:
        check_format(conversation, templates, tool_format)
    assert caught.value.at == at and all(word in caught.value.message for word in words)


@pytest.mark.parametrize(
    ("form", "ids", "why"),
    [
        (Format(HERMES), {"<tool_call>": 1, "</tool_call>": 2}, "no reasoning in a format that Baton knows"),
        (Format(HERMES, THINK), {"<think>": 1}, "'</think>' is several tokens of this model"),
        (Format(None, SEED_THINK), {"</seed:think>": 1}, "'<seed:think>' is several tokens of this model"),
        (Format(None, THINK), {"<think>": 1, "</think>": 2}, None),
        (Format(HERMES, THINK), {"<think>": 1, "</think>": 2}, None),
    ],
)
def test_a_budget_of_reasoning_tokens_needs_markers_of_one_token(
    form: Format, ids: dict[str, int], why: str | None
) -> None:
    markers = Markers(form, ids.get)
    check_budget(Conversation([USER]), markers)
    assert (no_budget(markers) is None) is (why is None)
    for budget in (0, 5):
        asked = Conversation([USER], reasoning_tokens=budget)
        if why is None:
            check_budget(asked, markers)
            continue
        with pytest.raises(Fault, match=why) as caught:
            check_budget(asked, markers)
        assert caught.value.at == REASONING_TOKENS
