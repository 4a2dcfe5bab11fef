import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai.conversation_fields import ChatMessage
from gateway.dialects.openai.read import turn_of
from gateway.text.chat_template import ChatTemplates
from gateway.text.template_messages import NO_ARGUMENTS, REASONING_NAMES, Absent, messages_of, tools_of
from gateway.words.places import Fault
from gateway.words.request import Call, Reasoning, Result, Text, Tool, Turn

# What templates of real models do with an assistant's message, in short.
QWEN = (
    "{% for m in messages %}{% if m.content is string %}{% set content = m.content %}{% else %}{% set content = '' %}"
    "{% endif %}{{ content }}{% if m.tool_calls %}{% for call in m.tool_calls %}{% if call.function %}"
    "{% set call = call.function %}{% endif %}<{{ call.name }}>{% if call.arguments is string %}{{ call.arguments }}"
    "{% else %}{{ call.arguments | tojson }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
LLAMA = (
    "{% for m in messages %}{% if 'tool_calls' in m %}{% set call = m.tool_calls[0].function %}<{{ call.name }}>"
    "{{ call.arguments | tojson }}{% else %}{{ m.content | trim }}{% endif %}{% endfor %}"
)
DEEPSEEK = (
    "{% for m in messages %}{% if m['content'] is none %}{% for call in m['tool_calls'] %}"
    "{{ '<' + call['function']['name'] + '>' + call['function']['arguments'] + '' }}{% endfor %}{% endif %}"
    "{% if m['content'] is not none %}{{ m['content'] + '' }}{% endif %}{% endfor %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.tool_calls is defined and m.tool_calls is not none %}{% for call in m.tool_calls %}"
    "<{{ call.function.name }}>{{ call.function.arguments }}{% endfor %}{% elif m.content != none %}{{ m.content }}"
    "{% endif %}{% endfor %}"
)
BY_ITEMS = (
    "{% for m in messages %}{{ m.content ~ '' }}{% for call in m.tool_calls or [] %}<{{ call.function.name }}>"
    "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value | tojson }}{% endfor %}{% endfor %}"
    "{% endfor %}"
)
PRINTING = (
    "{% for m in messages %}{{ m.content }}{{ m.name }}{{ m.refusal }}{{ m.tool_calls }}{{ m.function_call }}"
    "{{ m['reasoning_content'] }}{% endfor %}"
)
MODELS = {"qwen": QWEN, "llama": LLAMA, "deepseek": DEEPSEEK, "mistral": MISTRAL, "items": BY_ITEMS}


def normalised(**fields: Any) -> dict[str, Any]:
    [message] = messages_of(turn_of(ChatMessage.model_validate({"role": "assistant", **fields})), ("turns", 0))
    return message


def render(source: str, **fields: Any) -> str:
    return ChatTemplates({"default": source}, {}).render([normalised(**fields)], None, {})


def called(arguments: Any) -> list[dict[str, Any]]:
    return [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("arguments", ['{"a": "é"}', {"a": "é"}], ids=["text", "object"])
def test_a_call_without_content_is_told_by_templates_of_all_models(name: str, arguments: Any) -> None:
    expected = '<f>a="é"' if name == "items" else '<f>{"a": "é"}'
    assert render(MODELS[name], content=None, tool_calls=called(arguments)) == expected
    assert render(MODELS[name], tool_calls=called(arguments)) == expected, "null is absent"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("calls", [{}, {"tool_calls": None}, {"tool_calls": []}], ids=["absent", "null", "empty"])
def test_no_calls_are_no_calls(name: str, calls: dict[str, Any]) -> None:
    assert render(MODELS[name], content="hi", **calls) == "hi"
    assert render(MODELS[name], content=None, **calls) == ""


@pytest.mark.parametrize("arguments", [None, "", " \n"])
def test_a_call_without_arguments_has_none(arguments: Any) -> None:
    for name in ("qwen", "llama", "deepseek", "mistral"):
        assert render(MODELS[name], tool_calls=called(arguments)) == "<f>{}"
    [call] = normalised(function_call={"name": "f"})["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": {}}


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "5", '"x"', "null", '{"a": 1, "a": 2}', '{"a": NaN}'])
def test_arguments_that_are_no_object_are_a_fault_of_their_place(arguments: str) -> None:
    turn = Turn("assistant", (Text("a"), Call("1", "f", "{}"), Call("2", "g", arguments)))
    with pytest.raises(Fault, match=r"got .*, expected the text of a JSON object") as caught:
        list(messages_of(turn, ("turns", 4)))
    assert caught.value.at == ("turns", 4, "parts", 2, "arguments")


def test_a_turn_of_several_results_is_several_messages() -> None:
    results = (Result("1", "a"), Result("2", "b", is_error=True), Result("", "c"))
    told = [
        {"role": "tool", "name": "f", "content": "a", "tool_call_id": "1"},
        {"role": "tool", "name": "f", "content": "b", "tool_call_id": "2", "is_error": True},
        {"role": "tool", "name": "f", "content": "c"},
    ]
    assert list(messages_of(Turn("user", results, {"name": "f"}), ())) == told
    both = list(messages_of(Turn("user", (*results, Text("d")), {"name": "f"}), ()))
    assert both == [*told, {"role": "user", "name": "f", "content": "d"}]


def test_reasoning_has_the_names_that_templates_know() -> None:
    [message] = messages_of(Turn("assistant", (Reasoning("a"), Text("b"), Text("c"))), ())
    assert message == {"role": "assistant", "content": "bc", **dict.fromkeys(REASONING_NAMES, "a")}


def test_arguments_as_the_template_takes_them() -> None:
    turn = Turn("assistant", (Call("1", "f", ' {"a": 1}'), Call("", "g", " ")))
    [as_object], [as_text] = (list(messages_of(turn, (), form)) for form in ("object", "text"))
    assert [call["function"]["arguments"] for call in as_object["tool_calls"]] == [{"a": 1}, {}]
    assert [call["function"]["arguments"] for call in as_text["tool_calls"]] == [' {"a": 1}', "{}"]
    assert all(type(call["function"]["arguments"]) is str for call in as_text["tool_calls"])
    assert "id" not in as_object["tool_calls"][1] and list(as_object["tool_calls"][0]) == ["id", "type", "function"]


def test_tools_in_the_shape_of_openai() -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {}}}
    found = tools_of([Tool("f", "It adds.", schema, strict=True), Tool("g")])
    assert [tool["type"] for tool in found] == ["function", "function"]
    assert [list(tool["function"].items()) for tool in found] == [
        [("name", "f"), ("description", "It adds."), ("parameters", schema)],
        [("name", "g"), ("parameters", NO_ARGUMENTS)],
    ]


def test_content_that_is_absent_equals_none_and_no_text() -> None:
    absent = Absent()
    assert absent == None and absent == "" and absent == Absent() and absent != "a"  # noqa: E711
    assert not absent and absent + "a" == "a" and hash(absent) == hash("")
    assert render("{{ [messages[0].content is none, messages[0].content == none, 1 is none, none is none] }}") == str(
        [True, True, False, True]
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("aé\"'{} ", max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=6,
)
objects = st.dictionaries(st.text("abé", max_size=3), json_values, max_size=3)


PRINTED = ("{{ %s }}", "{{ '' + %s }}", "{{ %s + '' }}", "{{ %s ~ '' }}", "{{ %s | trim }}")


@given(objects, st.booleans(), st.booleans(), st.sampled_from(PRINTED))
def test_arguments_as_text_and_as_an_object_render_alike(
    arguments: dict[str, Any], is_old: bool, is_ascii: bool, printing: str
) -> None:
    text = json.dumps(arguments, ensure_ascii=is_ascii)

    def message(given: Any) -> dict[str, Any]:
        function = {"name": "f", "arguments": given}
        return {"function_call": function} if is_old else {"tool_calls": [{"function": function, "id": None}]}

    place = "tool_calls[0].function"
    reading = "{{ messages[0]." + place + ".arguments | tojson }}"
    assert json.loads(render(reading, **message(text))) == arguments
    assert render(reading, **message(text)) == render(reading, **message(arguments))

    source = printing % f"messages[0].{place}.arguments"
    assert render(source, **message(text)) == text, "as the client has written it"
    assert json.loads(render(source, **message(arguments))) == arguments


EXTRA = ("name", "refusal", "tool_calls", "function_call", "reasoning_content", "reasoning", "tool_call_id")


@given(st.dictionaries(st.sampled_from(("content", *EXTRA)), st.none()))
def test_what_is_null_is_absent_and_prints_nothing(fields: dict[str, None]) -> None:
    assert render(PRINTING, **fields) == ""
    assert normalised(**fields) == {"role": "assistant", "content": None}
