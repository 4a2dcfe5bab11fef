import json
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.text.channels.formats import GLM, MINIMAX_M2, QWEN3_CODER
from gateway.text.channels.readers import MAX_HEADER
from gateway.text.channels.tag_patterns import MAX_GAP, PairedCalls, TaggedCalls
from gateway.text.channels.tagged_calls import TaggedCall
from tests.gateway.text.channels.reading import TOOLS

FORMATS: dict[str, TaggedCalls | PairedCalls] = {"tags": QWEN3_CODER, "minimax": MINIMAX_M2, "pairs": GLM}


def read(text: str, size: int = 1 << 20, name: str = "tags", tools: Any = TOOLS) -> tuple[str, str, TaggedCall]:
    """The arguments, the text that is not of the call, and its reader."""
    reader, told = TaggedCall(FORMATS[name].patterns, tools), ""
    for at in range(0, len(text), size):
        arguments, rest = reader.read(text[at : at + size])
        told += arguments
        if reader.is_over or reader.is_broken:
            return told, rest + text[at + size :], reader
    return told, "", reader


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


def call(*parameters: str) -> str:
    return f"\n<function=f>\n{''.join(parameters)}</function>"


def test_values_get_the_types_of_the_schema() -> None:
    text = call(parameter("text", "5"), parameter("count", "5"), parameter("items", "[5]"), parameter("note", "null"))
    told, rest, reader = read(text + "\n</tool_call>")
    assert told == '{"text": "5", "count": 5, "items": [5], "note": null}'
    assert rest == "\n</tool_call>" and reader.is_over and reader.name == "f"


def test_what_the_schema_does_not_name_is_a_string() -> None:
    assert read(call(parameter("other", "5")))[0] == '{"other": "5"}'


def test_a_call_without_parameters() -> None:
    assert read("<function=f></function>")[0] == read("<function=f>\n</function>", 1)[0] == "{}"


def test_only_one_line_break_on_each_side_is_not_of_the_value() -> None:
    assert json.loads(read(call(parameter("text", "\n a \n")))[0]) == {"text": "\n a \n"}
    assert json.loads(read(call(parameter("text", "")))[0]) == {"text": ""}
    assert json.loads(read("<function=f><parameter=text>a</parameter></function>")[0]) == {"text": "a"}
    minimax = '<invoke name="f"><parameter name="text">\na\n</parameter></invoke>'
    assert json.loads(read(minimax, name="minimax")[0]) == {"text": "\na\n"}


@given(
    st.lists(
        st.sampled_from(["</parameter>", "</function>", "<parameter", "\n", " ", "a", '"', "\\", "é", "<"]), max_size=9
    ),
    st.sampled_from([1, 3, 1 << 20]),
)
def test_closing_tags_count_only_before_another_tag(parts: list[str], size: int) -> None:
    value = "".join(parts)
    assume(re.search(r"</parameter>\s*</function>", value) is None)
    told, rest, reader = read(call(parameter("text", value), parameter("count", "1")), size)
    assert reader.is_over and rest == "" and json.loads(told) == {"text": value, "count": 1}


@pytest.mark.parametrize("size", [1, 100])
def test_white_space_between_tags_is_bounded(size: int) -> None:
    near, far = (f"a</parameter>{' ' * gap}</function>x" for gap in (MAX_GAP, MAX_GAP + 1))
    assert read(f"<function=f><parameter=text>{near}", size)[:2] == ('{"text": "a"}', "x")
    told, _, reader = read(f"<function=f><parameter=text>{far}", size)
    assert told == f'{{"text": "{far}' and not reader.is_over


@pytest.mark.parametrize("size", [1, 100])
def test_a_value_without_its_closing_tag_ends_with_that_of_the_call(size: int) -> None:
    told, rest, reader = read("<function=f>\n<parameter=text>\na\n</function>\n<function=g>", size)
    assert (told, rest, reader.is_over) == ('{"text": "a"}', "<function=g>", True)


def test_strings_are_told_while_they_are_written() -> None:
    reader = TaggedCall(QWEN3_CODER.patterns, TOOLS)
    assert reader.read("<function=f><parameter=text>") == ('{"text": ', "")
    assert reader.read('\n"a') == ('"\\"a', "")
    assert reader.read("\n") == ("", "")
    assert reader.read("b\n</param") == ("\\nb", "")
    assert reader.read("eter>\n") == ("", "")
    assert reader.read("</function>") == ('"}', "")


def test_a_string_that_may_be_null_is_told_when_it_is_none() -> None:
    reader = TaggedCall(QWEN3_CODER.patterns, TOOLS)
    reader.read("<function=f><parameter=note>")
    assert [reader.read(char)[0] for char in "nul"] == ["", "", ""]
    assert reader.read("ls") == ('"nulls', "")


def test_other_values_are_told_when_they_are_whole() -> None:
    reader = TaggedCall(QWEN3_CODER.patterns, TOOLS)
    reader.read("<function=f><parameter=items>")
    assert reader.read("[1, 2") == ("", "")
    assert reader.read("]</parameter><parameter=count>") == ('[1, 2], "count": ', "")


@pytest.mark.parametrize(
    ("text", "arguments", "rest"),
    [
        (
            call(parameter("count", "1"), parameter("count", "2")),
            '{"count": 1',
            "<parameter=count>\n2\n</parameter>\n</function>",
        ),
        ("<function=f> oops", "", " oops"),
        ("<function=f>\n<function=f>", "", "\n<function=f>"),
        (f"<function=f><parameter={'k' * MAX_HEADER}>", "", f"<parameter={'k' * MAX_HEADER}>"),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_what_breaks_a_call_is_not_of_it(text: str, arguments: str, rest: str, size: int) -> None:
    told, behind, reader = read(text, size)
    assert (told, reader.name, reader.is_broken) == (arguments, "f", True)
    assert behind.lstrip("\n") == rest.lstrip("\n")


@given(st.integers(MAX_HEADER - 40, MAX_HEADER + 3), st.sampled_from([1, 11, 1 << 20]))
def test_a_header_is_bounded(num_spaces: int, size: int) -> None:
    header = " " * num_spaces + "<function=f>"
    _, _, reader = read(header + "</function>", size)
    is_short = len(header) <= MAX_HEADER
    assert (reader.name == "f", reader.is_over, reader.is_broken) == (is_short, is_short, not is_short)


@pytest.mark.parametrize(
    ("text", "takes", "ended"),
    [
        ("<function=f>", False, ("{}", "")),
        ("<function=f><param", False, ("{}", "<param")),
        ("<function=f><parameter=text>a", True, None),
        ("<function=f><parameter=text>a\n</parameter", True, None),
        ("<function=f><parameter=text>a\n</parameter>\n", False, ('"}', "")),
        ("<function=f><parameter=text>a\n</function>\n", False, ('"}', "")),
        ("<function=f><parameter=count>1\n</parameter>\n", False, ("1}", "")),
    ],
)
def test_a_marker_ends_a_call_between_its_tags(text: str, takes: bool, ended: tuple[str, str] | None) -> None:
    _, _, reader = read(text)
    assert reader.takes_markers is takes
    if ended is not None:
        assert reader.break_off() == ended


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("<function=f>", ""),
        ("<function=f><parameter=te", ""),
        ("<function=f><parameter=text>a\n</para", "\\n</para"),
        ("<function=f><parameter=text>a\n</parameter>", '"'),
        ("<function=f><parameter=count>1\n</parameter>", "1"),
        ("<function=f><parameter=count>1", ""),
    ],
)
def test_what_the_end_of_the_answer_adds(text: str, held: str) -> None:
    assert read(text)[2].end() == held


class TestPairs:
    """Calls with the bare name of the tool, whose end is the closing marker."""

    @pytest.mark.parametrize("gap", ["", "\n", " \n"])
    @pytest.mark.parametrize("size", [1, 5, 1000])
    def test_keys_and_values(self, gap: str, size: int) -> None:
        pairs = [("text", "a</arg_value>\nb"), ("count", "5"), ("other", "")]
        text = "f" + "".join(
            f"{gap}<arg_key>{key}</arg_key>{gap}<arg_value>{value}</arg_value>" for key, value in pairs
        )
        told, rest, reader = read(text + gap, size, "pairs")
        ended, left = reader.break_off()
        assert json.loads(told + ended) == {"text": "a</arg_value>\nb", "count": 5, "other": ""}
        assert (rest, left, reader.name, reader.is_over) == ("", "", "f", True)

    @pytest.mark.parametrize(
        ("text", "name"), [("f", "f"), ("\ng.h-1\n", "g.h-1"), ("unknown", None), ("f g", None), ("", None)]
    )
    @pytest.mark.parametrize("size", [1, 1000])
    def test_a_call_without_arguments_is_a_name_before_the_marker(self, text: str, name: str | None, size: int) -> None:
        told, _, reader = read(text, size, "pairs")
        assert (told, reader.name, reader.takes_markers) == ("", None, False)
        ended = reader.break_off()
        assert reader.name == name and (name is None or ended == ("{}", ""))

    @pytest.mark.parametrize("text", ["f and", "<arg_key>", "f<arg_value>", "f f<arg_key>", "f</arg_key>"])
    def test_what_is_no_header(self, text: str) -> None:
        assert read(text, name="pairs")[2].is_broken and read(text, 1, "pairs")[2].is_broken
