import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.channels.json_calls import JsonCall, JsonCalls
from gateway.text.channels.readers import MAX_HEADER
from tests.gateway.text.channels.reading import TOOLS

ARGUMENTS = '{"text": "a \\"b\\" }", "items": [1, {"c": null}]}'
white = st.text(" \n\t\r", max_size=3)


def read(text: str, size: int = 1 << 20) -> tuple[str | None, str, str, JsonCall]:
    """The name, the arguments, the text that is not of the call, and its reader."""
    reader, told = JsonCall(JsonCalls(), TOOLS), ""
    for at in range(0, len(text), size):
        arguments, rest = reader.read(text[at : at + size])
        told += arguments
        if reader.is_over or reader.is_broken:
            return reader.name, told, rest + text[at + size :], reader
    return reader.name, told, "", reader


@given(st.permutations(["name", "arguments", "id"]), st.lists(white, min_size=16, max_size=16), st.integers(1, 9))
def test_keys_stand_in_any_order(keys: list[str], spaces: list[str], size: int) -> None:
    values = {"name": '"f"', "arguments": ARGUMENTS, "id": "[7]"}
    space = iter(spaces)
    fields = ",".join(f'{next(space)}"{key}"{next(space)}:{next(space)}{values[key]}{next(space)}' for key in keys)
    name, arguments, rest, reader = read(f"{next(space)}{{{fields}}}{next(space)}x", size)
    assert (name, arguments) == ("f", ARGUMENTS) and reader.is_over and rest.strip() == "x"


@pytest.mark.parametrize("key", ["arguments", "parameters"])
def test_arguments_have_two_names(key: str) -> None:
    assert read(f'{{"name": "f", "{key}": {ARGUMENTS}}}')[:3] == ("f", ARGUMENTS, "")


def test_a_call_without_arguments() -> None:
    assert read('{"name": "f"}')[:3] == ("f", "{}", "")
    assert read('{"id": 1, "name": "f" } ')[:3] == ("f", "{}", " ")


@given(st.text(), st.booleans())
def test_arguments_pass_as_they_are_written(text: str, is_ascii: bool) -> None:
    arguments = json.dumps({"text": text}, ensure_ascii=is_ascii)
    assert read(f'{{"name": "f", "arguments": {arguments}}}')[1] == arguments


def test_a_line_break_in_a_string_is_escaped() -> None:
    _, arguments, _, reader = read('{"name": "f", "arguments": {"text": "a\nb"}}')
    assert json.loads(arguments) == {"text": "a\nb"} and reader.is_over


def test_names_are_json_strings() -> None:
    assert read('{"name": "\\u0066", "arguments": {}}')[0] == "f"


@pytest.mark.parametrize(
    ("text", "arguments", "rest"),
    [
        ('{"name": "f", "arguments": {"a" 1}}', '{"a" ', "1}}"),
        ('{"name": "f", "arguments": {}]', "{}", "]"),
        ('{"name": "f", "arguments": {}, }', "{}", "}"),
        ('{"name": "f", "arguments": {}, "arguments": {}}', "{}", "{}}"),
        ('{"name": "f", "arguments": {}, "id": x}', "{}", "x}"),
        ('{"name": "f", "arguments": {"a": "\\x"}}', '{"a": "\\', 'x"}}'),
    ],
)
@pytest.mark.parametrize("size", [1, 100])
def test_what_breaks_a_call_is_not_of_it(text: str, arguments: str, rest: str, size: int) -> None:
    name, told, behind, reader = read(text, size)
    assert (name, told, behind, reader.is_broken) == ("f", arguments, rest, True)


@given(st.integers(MAX_HEADER - 60, MAX_HEADER + 20), st.sampled_from([1, 7, 1 << 20]))
def test_a_header_is_bounded(num_chars: int, size: int) -> None:
    """The header ends where the arguments begin."""
    header = f'{{"id": "{"x" * num_chars}", "name": "f", "arguments": '
    name, _, _, reader = read(header + "{}}", size)
    is_short = len(header) <= MAX_HEADER
    assert (name == "f", reader.is_over, reader.is_broken) == (is_short, is_short, not is_short)


def test_long_arguments_before_the_name_are_no_header() -> None:
    arguments = json.dumps({"text": "x" * 2 * MAX_HEADER})
    assert read(f'{{"arguments": {arguments}, "name": "f"}}', 5)[:3] == ("f", arguments, "")


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("", False),
        ('{"na', True),
        ('{"name": "f', True),
        ('{"name": "f", "arguments": ', False),
        ('{"name": "f", "arguments": {"a": "b', True),
        ('{"name": "f", "arguments": {"a": "b"', False),
        ('{"name": "f", "arguments": {"a": 1', False),
    ],
)
def test_a_marker_is_text_in_a_string_alone(text: str, takes: bool) -> None:
    assert read(text)[3].takes_markers is takes


def test_nothing_is_held_at_the_end() -> None:
    reader: Any = read('{"name": "f", "arguments": {"a": 1')[3]
    assert (reader.end(), reader.break_off()) == ("", ("", ""))
