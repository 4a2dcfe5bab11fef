import json
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.openai.fields import ChatRequest, parse
from gateway.dialects.openai.read import conversation_of
from gateway.text.chat_template import FOR_TOOLS, MAX_RENDERED, ChatTemplates, read_template_sources
from gateway.text.plain_marks import MARK, PlainMarks
from gateway.text.template_messages import ArgumentsForm
from gateway.words.places import FIRST_PROMPT, TURNS, Fault
from gateway.words.request import Call, Conversation, Result, Text, Tool, Turn
from protocol.errors import BadRequest, CheckpointError
from tests.gateway.folders import TEMPLATE, byte_tokenizer, write_folder
from tests.gateway.tool_templates import ARGUMENTS, BY_FORM, TAGGED_JSON, TOOLS

USER = [{"role": "user", "content": "Hi <b>&"}]


def render(source: str, messages: list[dict[str, Any]] = USER, **extra: Any) -> str:
    return ChatTemplates({"default": source}, {"bos_token": "<|bos|>"}).render(messages, None, extra)


def test_messages_and_the_start_of_the_answer() -> None:
    assert render(TEMPLATE) == "<user>Hi <b>&<|end|><assistant>"


def test_what_templates_may_use() -> None:
    assert render("{{ bos_token }}{{ messages[0] | tojson }}") == '<|bos|>{"role": "user", "content": "Hi <b>&"}'
    assert render("{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true) }}") == '{"a": "é", "b": 1}'
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("a{% generation %}b{{ 1 }}{% endgeneration %}c") == "ab1c"
    assert render("{%- if thinking %}on{% else %}off{% endif %}", thinking=True) == "on"
    assert render("  {% if tools %}tools{% endif %}\nx") == "x"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7]['content'] + 'x' }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_complains_is_the_requests_fault(source: str) -> None:
    with pytest.raises(BadRequest, match="chat template") as caught:
        render(source)
    assert isinstance(caught.value, Fault) and caught.value.at == FIRST_PROMPT


def test_a_template_that_makes_too_much_of_the_messages() -> None:
    with pytest.raises(BadRequest, match=f"more than {MAX_RENDERED} characters") as caught:
        render("{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}", [{"content": "x" * 2000}])
    assert isinstance(caught.value, Fault) and caught.value.at == FIRST_PROMPT


def test_a_broken_template_is_told_when_it_is_needed() -> None:
    with pytest.raises(BadRequest, match="cannot be used"):
        render("{% if %}")


def test_a_refusal_quotes_little_of_a_long_name() -> None:
    templates = ChatTemplates({"default": "x"}, {})
    with pytest.raises(BadRequest, match=r"prompts\[0\]\.template: got 'xxx") as caught:
        templates.render(USER, "x" * 100_000, {})
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"])
def test_variables_that_a_request_may_not_set(name: str) -> None:
    with pytest.raises(BadRequest, match=rf"prompts\[0\]\.variables: got '{name}'"):
        ChatTemplates({"default": "x"}, {}).render(USER, None, {name: True})


def test_a_format_of_chats_that_is_not_parsed_is_refused_whatever_the_template() -> None:
    templates = ChatTemplates({"default": "x", "tool": "y"}, {}, refused="chats have a format that is not parsed yet")
    for name in (None, "tool", "nobody's"):
        with pytest.raises(BadRequest, match=r"a format that is not parsed yet; use /v1/completions with a prompt"):
            templates.render(USER, name, {})


def test_no_template() -> None:
    with pytest.raises(BadRequest, match="no chat template"):
        ChatTemplates({}, {}).render(USER, None, {})


def test_named_templates() -> None:
    templates = ChatTemplates({"default": "d", "rag": "r"}, {})
    assert [templates.render(USER, name, {}) for name in (None, "rag")] == ["d", "r"]
    with pytest.raises(BadRequest, match="default, rag"):
        templates.render(USER, "other", {})
    with pytest.raises(BadRequest, match="variables: got 'messages'"):
        templates.render(USER, None, {"messages": []})


def test_sources_in_tokenizer_config(tmp_path: Path) -> None:
    assert read_template_sources(write_folder(tmp_path / "a", byte_tokenizer(), template="one")) == {"default": "one"}
    named = [{"name": "default", "template": "one"}, {"name": "rag", "template": "two"}]
    folder = write_folder(tmp_path / "b", byte_tokenizer(), {"chat_template": named})
    assert read_template_sources(folder) == {"default": "one", "rag": "two"}


def test_files_win(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_tokenizer(), template="old")
    (folder / "chat_template.jinja").write_text("new")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("two")
    assert read_template_sources(folder) == {"default": "new", "rag": "two"}


@pytest.mark.parametrize("wrong", [5, [{"template": "x"}]])
def test_a_wrong_entry_is_named(tmp_path: Path, wrong: Any) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": wrong}))
    with pytest.raises(CheckpointError, match="chat_template"):
        read_template_sources(tmp_path)


CALLING: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "abcdef123", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
        ],
    },
    {"role": "tool", "content": '{"sun": true}', "tool_call_id": "abcdef123"},
    {"role": "assistant", "content": "Sunny <b>."},
    {"role": "user", "content": "And now?"},
]


def conversation(**fields: Any) -> Conversation:
    request = parse(ChatRequest, {"messages": CALLING, **fields})
    return conversation_of(request, request.messages, add_special=False)


def test_a_conversation_with_tools() -> None:
    messages = json.loads(json.dumps(CALLING))
    messages[1]["content"] = "I ask."
    messages[1]["reasoning"] = "which city\n"
    messages[1]["tool_calls"].append({"id": "2", "function": {"name": "now"}})
    messages.insert(3, {"role": "tool", "content": "noon", "tool_call_id": "2"})
    found = ChatTemplates({"default": TAGGED_JSON}, {}).render_conversation(
        conversation(messages=messages, tools=TOOLS)
    )
    assert found == (
        "<|im_start|>system\n# Tools\n<tools>\n"
        f"{json.dumps(TOOLS[0], ensure_ascii=False)}\n{json.dumps(TOOLS[1])}\n</tools><|im_end|>\n"
        "<|im_start|>user\nWeather?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nwhich city\n</think>\n\nI ask."
        f'\n<tool_call>\n{{"name": "weather", "arguments": {json.dumps(ARGUMENTS, ensure_ascii=False)}}}\n</tool_call>'
        '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|im_end|>\n'
        '<|im_start|>user\n<tool_response>\n{"sun": true}\n</tool_response>\n<tool_response>\nnoon\n</tool_response>'
        "<|im_end|>\n<|im_start|>assistant\nSunny <b>.<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("form", BY_FORM)
def test_templates_of_each_form_show_tools_and_calls(form: str) -> None:
    templates = ChatTemplates({"default": BY_FORM[form]}, {"bos_token": "", "eos_token": ""})
    assert templates.shows_tools(None)
    assert templates.shows_calls(None, with_tools=True) and templates.shows_calls(None, with_tools=False)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (TEMPLATE, (False, False, False)),
        ("{{ tools | tojson }}", (True, False, False)),
        ("{% if not tools %}{{ messages | tojson }}{% endif %}", (False, False, True)),
        ("{{ messages | tojson }}", (False, True, True)),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}", (False, False, False)),
    ],
)
def test_what_a_template_shows(source: str, shown: tuple[bool, ...]) -> None:
    templates = ChatTemplates({"default": source, "other": "x"}, {})
    for name, expected in ((None, shown), ("default", shown), ("other", (False, False, False))):
        calls = (templates.shows_calls(name, with_tools=with_tools) for with_tools in (True, False))
        assert (templates.shows_tools(name), *calls) == expected
    with pytest.raises(BadRequest, match="got 'third'"):
        templates.shows_tools("third")


def test_the_template_that_is_named_for_tools() -> None:
    templates = ChatTemplates({"default": "d", FOR_TOOLS: "t"}, {})
    bare, tooled = Conversation([Turn("user", ())]), Conversation([Turn("user", ())], tools=[Tool("f")])
    assert [templates.render_conversation(each) for each in (bare, tooled)] == ["d", "t"]
    assert templates.render([], "default", {}, [{}]) == "d" and templates.render([], FOR_TOOLS, {}) == "t"


@pytest.mark.parametrize(("form", "shown"), [("object", '{"a": 1}'), ("text", '"{\\"a\\":  1}"')])
def test_arguments_in_the_form_that_is_given(form: ArgumentsForm, shown: str) -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    turn = Turn("assistant", (Call("", "f", '{"a":  1}'),))
    assert ChatTemplates({"default": source}, {}, form).render_conversation(Conversation([turn])) == shown


def test_arguments_that_are_no_object() -> None:
    turns = [Turn("user", ()), Turn("assistant", (Call("", "f", "5"),))]
    with pytest.raises(Fault) as caught:
        ChatTemplates({"default": TAGGED_JSON}, {}).render_conversation(Conversation(turns))
    assert caught.value.at == (*TURNS, 1, "parts", 0, "arguments")


def test_special_tokens_are_marked_wherever_a_client_writes_them() -> None:
    source = "<|s|>{{ messages | tojson }}{{ tools | tojson }}{{ v | tojson }}"
    source += "{{ messages[1].tool_calls[0].function.arguments }}"
    templates = ChatTemplates({"default": source}, {}, plain=PlainMarks(["<|s|>"]))
    turn = Turn(
        "assistant", (Text("a<|s|>"), Call("<|s|>", "<|s|>", '{"<|s|>": ["<|s|>"]}'), Result("<|s|>", "<|s|>")),
        {"name": "<|s|>"},
    )  # fmt: skip
    tool = Tool("<|s|>", "<|s|>", {"<|s|>": "<|s|>"})
    found = templates.render_conversation(Conversation([turn], None, {"v": ["<|s|>"]}, tools=[tool]))
    assert found.count("<|s|>") == 1 and found.startswith("<|s|>"), "the template's own"
    assert found.replace(MARK, "").count("<|s|>") == found.count(f"<{MARK}|s|>") + 1 > 15


def test_an_indent_that_makes_too_much_of_a_value() -> None:
    value: Any = [1] * 80_000
    for _ in range(150):
        value = [value]
    templates = ChatTemplates({"default": "{{ v | tojson(indent=4) }}"}, {})
    with pytest.raises(BadRequest, match=f"more than {MAX_RENDERED} characters"):
        templates.render([], None, {"v": value})
    assert templates.render([], None, {"v": {"a": [1]}}) == json.dumps({"a": [1]}, indent=4)


@pytest.mark.slow
@pytest.mark.parametrize("form", BY_FORM)
@pytest.mark.parametrize("with_tools", [True, False])
def test_tools_agree_with_transformers(tmp_path: Path, form: str, with_tools: bool) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415  # takes seconds

    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|eos|>"}
    theirs = AutoTokenizer.from_pretrained(write_folder(tmp_path, byte_tokenizer(), config, template=BY_FORM[form]))
    messages = json.loads(json.dumps(CALLING))
    if form == "sections":  # transformers hands on what it gets, and this template joins text
        messages[1]["tool_calls"][0]["function"]["arguments"] = json.dumps(ARGUMENTS, ensure_ascii=False)
    if form == "tagged JSON":
        messages[1]["reasoning_content"] = "Which?"
    tools = TOOLS if with_tools else None
    expected = theirs.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)

    ours = ChatTemplates(read_template_sources(tmp_path), {"bos_token": "<|bos|>", "eos_token": "<|eos|>"})
    fields = {"messages": messages, "tools": tools}
    assert ours.render_conversation(conversation(**fields)) == expected
    assert ("weather" in expected) and (not with_tools or "now" in expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        TEMPLATE,
        "{{- bos_token }}\n{%- for m in messages %}\n  {{- '<|' + m['role'] + '|>' }}\n  {{- m.content | trim }}\n"
        "{%- endfor %}\n  {%- if add_generation_prompt %}\n  {{- '<|assistant|>' }}\n{%- endif %}\n",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ m | tojson(indent=2) }}"
        "{% endfor %}{{ ns.n }}{% if tools is none %}-{% endif %}{% if tools is not none %}+{% endif %}",
    ],
)
def test_agrees_with_transformers(tmp_path: Path, source: str) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415  # takes seconds

    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|eos|>"}
    folder = write_folder(tmp_path, byte_tokenizer(), config, template=source)
    theirs = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": " é <b> \n"}, {"role": "user", "content": "Hi"}]
    expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ours = ChatTemplates(read_template_sources(folder), {"bos_token": "<|bos|>", "eos_token": "<|eos|>"})
    assert ours.render(messages, None, {}) == expected
