import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai.fields import ChatMessage
from gateway.dialects.openai.read import turn_of
from gateway.text.chat_template import ChatTemplates
from gateway.text.template_messages import Absent, for_template

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
    return for_template(turn_of(ChatMessage.model_validate({"role": "assistant", **fields})))


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
    function = {"name": "f"}
    assert normalised(function_call=function)["function_call"]["arguments"] == {}


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "5", '"x"', "null", '{"a": 1, "a": 2}', '{"a": NaN}', 7, [1]])
def test_what_is_no_object_stays_as_it_is(arguments: Any) -> None:
    found = normalised(tool_calls=called(arguments))
    assert found["tool_calls"] == called(arguments)
    assert type(found["tool_calls"][0]["function"]["arguments"]) is type(arguments)


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


@given(objects, st.sampled_from(["function", None, "function_call"]), st.booleans(), st.sampled_from(PRINTED))
def test_arguments_as_text_and_as_an_object_render_alike(
    arguments: dict[str, Any], field: str | None, is_ascii: bool, printing: str
) -> None:
    text = json.dumps(arguments, ensure_ascii=is_ascii)

    def message(given: Any) -> dict[str, Any]:
        function = {"name": "f", "arguments": given}
        if field == "function_call":
            return {"function_call": function}
        return {"tool_calls": [function if field is None else {"function": function, "id": None}]}

    place = {"function": "tool_calls[0].function", None: "tool_calls[0]", "function_call": "function_call"}[field]
    reading = "{{ messages[0]." + place + ".arguments | tojson }}"
    assert json.loads(render(reading, **message(text))) == arguments
    assert render(reading, **message(text)) == render(reading, **message(arguments))

    source = printing % f"messages[0].{place}.arguments"
    assert render(source, **message(text)) == text, "as the client has written it"
    assert json.loads(render(source, **message(arguments))) == arguments


EXTRA = ("name", "refusal", "tool_calls", "function_call", "reasoning_content")


@given(st.dictionaries(st.sampled_from(("content", *EXTRA)), st.none()))
def test_what_is_null_is_absent_and_prints_nothing(fields: dict[str, None]) -> None:
    assert render(PRINTING, **fields) == ""
    assert normalised(**fields) == {"role": "assistant", "content": None}
