"""What a model's template writes, channels read; what they have read, the template writes again to the letter."""

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.gateway.text.channels import templates
from tests.gateway.text.channels.reading import FORMATS, cut, markers, read
from tests.gateway.text.channels.templates import assistant, renderer

USER = {"role": "user", "content": "question"}
SOURCES = {"json": templates.QWEN, "tags": templates.QWEN_CODER, "minimax": templates.MINIMAX, "pairs": templates.GLM}
TEMPLATES = {name: renderer(source) for name, source in SOURCES.items()}
TAGS = [
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "</function>",
    "<parameter=text>",
    "</parameter>",
    "</invoke>",
    "</arg_value>",
]
# a closing tag right before another tag ends a value
AMBIGUOUS = re.compile(r"(</parameter>|</function>|</invoke>|</arg_value>)\s*<[^>]*>")

words = st.one_of(st.text(max_size=12), st.sampled_from(["\n", " ", "null", "5", "<", "é"]))
texts = st.lists(words, max_size=5).map("".join)
texts_with_tags = st.lists(st.one_of(words, st.sampled_from(TAGS)), max_size=5).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def arguments_of(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments that the schema of the tool f allows; in JSON any ones."""
    if name == "json":
        return st.dictionaries(texts_with_tags, st.one_of(values, texts_with_tags), max_size=4)
    some = {
        "text": texts_with_tags,
        "count": st.integers(),
        "items": st.lists(values, max_size=3),
        "note": st.none() | texts_with_tags.filter(lambda text: text.strip() not in ("null", "None")),
    }
    return st.fixed_dictionaries({}, optional=some)


@pytest.mark.parametrize("name", TEMPLATES)
@given(data=st.data(), content=texts, reasoning=texts, places=st.lists(st.integers(1, 9), max_size=40))
def test_what_was_read_is_written_again(name: str, data: Any, content: str, reasoning: str, places: list[int]) -> None:
    render = TEMPLATES[name]
    content, reasoning = content.strip(), reasoning.strip("\r\n") if name != "tags" else ""
    calls = data.draw(st.lists(st.tuples(st.just("f"), arguments_of(name)), max_size=3))
    assume(name == "json" or not any(is_ambiguous(value) for _, arguments in calls for value in arguments.values()))

    prompt = render([USER], [])
    written = render([USER, assistant(content, reasoning, calls)], [])
    is_open = markers(FORMATS[name]).is_reasoning_open(prompt)
    answer = answer_of(written, render([USER, assistant("", "", [])], []))
    whole = read(FORMATS[name], cut([answer], places), opened=is_open and answer.startswith("<think>"))

    assert (whole.text, whole.reasoning) == (content, reasoning)
    assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == calls
    again = [(call.name, json.loads(call.arguments)) for call in whole.calls]
    assert render([USER, assistant(whole.text, whole.reasoning, again)], []) == written


def is_ambiguous(value: Any) -> bool:
    """The value, as a template writes it, has what ends a value."""
    return AMBIGUOUS.search(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) is not None


def answer_of(written: str, empty: str) -> str:
    """What the template has written for the assistant's turn, by what it writes for an empty one."""
    end = len(empty) - empty.rindex("<|im_end|>")  # characters behind the turn
    return written[len(empty) - end : len(written) - end]


def test_arguments_are_written_as_the_template_writes_them() -> None:
    """With the spaces of `tojson`, so that the next prompt has the same tokens."""
    arguments = {"text": "é\n", "count": 1, "items": [1, {"a": None}]}
    for name, render in TEMPLATES.items():
        written = render([assistant("", "", [("f", arguments)])], [])
        assert read(FORMATS[name], [written]).calls[0].arguments == json.dumps(arguments, ensure_ascii=False)
