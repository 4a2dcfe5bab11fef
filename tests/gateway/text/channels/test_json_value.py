import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.channels.json_value import JsonValue, whole_json
from gateway.words.strict_json import MAX_DEPTH

Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
parts = st.sampled_from([*'{}[]",:\\ -+.0123eE', "true", "false", "null", "\\u12af", "\\n", '"a"', "\n", "é", "nul"])
texts_like_json = st.lists(parts, max_size=12).map("".join)


def read(pieces: list[str]) -> tuple[str, str, JsonValue]:
    """The JSON that is read, the text behind it, and the reader."""
    value, told, rest = JsonValue(), "", ""
    for piece in pieces:
        if value.is_over or value.is_broken:
            rest += piece
            continue
        json_read, end = value.read(piece, 0)
        told, rest = told + json_read, rest + piece[end:]
    return told, rest, value


def parsed(text: str, strict: bool = True) -> Any:
    """ValueError for what is no JSON. `strict`: also for raw control characters in strings."""
    return json.loads(text, strict=strict, parse_constant=lambda _: json.loads("nonsense"))


@given(Json, st.booleans(), st.sampled_from(["", " ", "}", "x", '"']))
def test_a_value_ends_where_it_ends(value: Any, is_ascii: bool, behind: str) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    told, rest, reader = read([f"\n{text} {behind}"])
    assert (told, rest) == (f"\n{text}", f" {behind}") and reader.is_over


@given(texts_like_json)
def test_what_is_json_is_what_a_parser_takes(text: str) -> None:
    whole = whole_json(text)
    try:
        value = parsed(text, strict=False)
    except ValueError:
        assert whole is None
    else:
        assert whole is not None and parsed(whole) == value


@given(texts_like_json, st.lists(st.integers(1, 4), max_size=12))
def test_cutting_the_text_changes_nothing(text: str, lengths: list[int]) -> None:
    pieces, rest = [], text
    for length in lengths:
        pieces.append(rest[:length])
        rest = rest[length:]
    told, behind, reader = read([*pieces, rest])
    told_whole, behind_whole, whole = read([text])
    assert (told, behind, reader.is_over, reader.is_broken) == (
        told_whole,
        behind_whole,
        whole.is_over,
        whole.is_broken,
    )


@given(texts_like_json)
def test_what_is_broken_begins_no_json(text: str) -> None:
    """Reading stops at the first character that no JSON value can have there, and never earlier."""
    told, rest, reader = read([text])
    if reader.is_broken:
        assert text.endswith(rest) and rest
        assert whole_json(told + rest[0] + "0") is None
    elif not reader.is_over:
        endings = [
            "",
            '"',
            '":0',
            "0",
            ":0",
            "\\",
            "n",
            "u0000",
            "ue",
            "rue",
            "alse",
            "ull",
            "se",
            "lse",
            "l",
            "ll",
            "e",
        ]
        endings += [f"{ending}{tail}" for ending in endings for tail in ('"', '":0', '"":0', '0"', '00"', '000"', "]")]
        closers = closers_of(told)
        assert any(whole_json(told + ending + closers) is not None for ending in [*endings, '"":0', '"a":0'])


def closers_of(text: str) -> str:
    """The brackets that are open at the end of a text, innermost first."""
    is_string, is_escape, open_ones = False, False, ""
    for char in text:
        if is_escape:
            is_escape = False
        elif is_string:
            is_string, is_escape = char != '"', char == "\\"
        elif char == '"':
            is_string = True
        elif char in "{[":
            open_ones = ("}" if char == "{" else "]") + open_ones
        elif char in "}]":
            open_ones = open_ones[1:]
    return open_ones


@pytest.mark.parametrize("char", ["\n", "\t", "\r", "\x00", "\x1f"])
def test_a_raw_control_character_in_a_string_is_escaped(char: str) -> None:
    told, rest, _ = read([f'{{"a":{" " if char not in chr(10) + chr(9) else char}"x{char}y"}}'])
    assert json.loads(told) == {"a": f"x{char}y"} and rest == ""


def test_outside_of_strings_white_space_stays() -> None:
    assert whole_json(' {\n"a"\t:\r\n1 } ') == '{\n"a"\t:\r\n1 }'


@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_depth_is_bounded(bracket: str) -> None:
    _, rest, reader = read([bracket * MAX_DEPTH])
    assert rest == "" and not reader.is_broken
    _, rest, reader = read([bracket * (MAX_DEPTH + 1)])
    assert rest == bracket and reader.is_broken


@pytest.mark.parametrize(
    "text", ["01", "1.", "-", "1e", ".5", "+1", "1e+", "nul", "True", "NaN", "Infinity", "'a'", "{a:1}"]
)
def test_what_is_no_json(text: str) -> None:
    assert whole_json(text) is None


def test_a_string_is_open_for_any_text() -> None:
    value = JsonValue()
    value.read('{"a": "x', 0)
    assert value.is_in_string
    value.read('"', 0)
    assert not value.is_in_string
