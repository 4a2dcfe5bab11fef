import json
from pathlib import Path
from typing import Any

import pytest

from gateway.text.chat_template import MAX_RENDERED, ChatTemplates, read_template_sources
from gateway.words.places import FIRST_PROMPT, Fault
from protocol.errors import BadRequest, CheckpointError
from tests.gateway.folders import TEMPLATE, byte_tokenizer, write_folder

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
