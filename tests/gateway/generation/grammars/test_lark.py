"""Lark's spelling with schemas in it: llguidance itself says where a schema stands, and what answers may be."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.generation.grammars.lark import strict_lark
from gateway.words.request import Grammar
from protocol.errors import BadRequest
from tests.byte_grammars import allows, check, matcher_of

ABOVE_0 = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}  # llguidance alone allows 0, too
STRICT = '"x-guidance"'
KEYWORD = "%json"


def asked(source: str, *, compact: bool = False) -> str | BadRequest:
    return check(Grammar("ebnf", source, compact))


# ---- where a schema stands ----

PIECES = st.sampled_from(
    [
        *(
            "%json ",
            KEYWORD,
            '%json\n\n  {"a": "%json {"}',
            '%regex {"substring_chars": "%json {"}',
            "%lark {",
            "{",
            "}",
        ),
        *(
            '%llguidance {"a": "%json {}"}',
            "%ignore ",
            '"',
            "/",
            "//",
            "#",
            "\n",
            " ",
            "<a",
            ">",
            "@a ",
            "\\",
            '\\"',
            "\\/",
        ),
        *("start: ", "a", "A: ", "i", "[", "]", "{2}", "\u00fc", "\t", "\r\n", "\\x41", "\\u0041", "\x7f", "%", "-"),
    ]
)
SCHEMAS = st.tuples(st.just(KEYWORD), st.sampled_from(["", " ", "\n", "\r\n \t"]))


@st.composite
def soups(draw: st.DrawFn) -> str:
    """Pieces of a grammar in any order, with numbered schemas between them."""
    parts = draw(st.lists(st.one_of(PIECES, SCHEMAS), min_size=1, max_size=14))
    return "start: " + "".join(
        part if isinstance(part, str) else f'{"".join(part)}{{"const": {place}}}' for place, part in enumerate(parts)
    )


def error_of(source: str) -> str:
    """What llguidance says of a text as it is."""
    return str(matcher_of(source).get_error())


@given(soups())
@example('start: <a%json{"const": 1}>')
@example('start: /a\n%json{"const": 1}/ %json{"const": 2}')
@example('start: "a"i%json{"const": 1}"b" // %json{"const": 2}\n#%json{"const": 3}')
def test_a_schema_stands_where_llguidance_reads_one(soup: str) -> None:
    strict, refused = "", ""
    try:
        strict, _ = strict_lark(soup, compact=False)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert "expected a JSON schema" in refused or re.search("lexer error|failed to parse", error_of(soup)), refused
        return
    for number in re.findall(r'%json\s*\{"const": (\d+)\}', soup):
        place = re.search(rf'%json(?=\s*\{{"const": {number}\}})', soup)
        assert place is not None
        told = error_of(f"{soup[: place.end()]}!{soup[place.end() :]}")
        if "lexer error" in told:  # it reads no further, and refuses the grammar in any case
            return
        assert told.startswith('failed to parse "%json"') is (f'{{"const": {number}, {STRICT}' in strict), told


# ---- what answers may be ----

TEXTS = st.text(st.sampled_from('ab%json{}"/\\#<>@ :'), min_size=1, max_size=12)
COMMENTS = st.sampled_from(["", " # %json {", ' // "%json {}', "\n# %json {}\n"])


@given(st.lists(st.one_of(TEXTS, st.sampled_from([0, 1, 4])), min_size=1, max_size=6), st.data())
def test_each_of_several_schemas_is_followed_between_texts_and_comments(
    parts: list[str | int], data: st.DataObject
) -> None:
    lines, answer, wrong = [], "", ""
    for place, part in enumerate(parts):
        if isinstance(part, str):
            spelt = json.dumps(part) if data.draw(st.booleans()) else f"/{re.escape(part).replace('/', chr(92) + '/')}/"
            answer, wrong = answer + part, wrong + part
        else:
            spelt = f"%json {json.dumps(ABOVE_0, indent=part or None)}"
            answer, wrong = answer + "0.5", wrong + "0"
        lines.append(f"r{place}: {spelt}{data.draw(COMMENTS)}")
    names = " ".join(f"r{place}" for place in range(len(parts)))
    found = asked("\n".join([f"start: {names}", *lines]))
    assert allows(found, answer)
    assert allows(found, wrong) is (wrong == answer)


def test_a_schema_in_a_nested_grammar_is_followed() -> None:
    found = asked('start: "a" %lark {\nstart: %json ' + json.dumps(ABOVE_0) + ' "c"\n}\n')
    assert allows(found, "a0.5c") and not allows(found, "a0c")


def test_words_are_compact_where_the_request_says_so() -> None:
    source = 'start: %json {"const": [1, 2]}'
    assert allows(asked(source), "[1, 2]")
    assert allows(asked(source, compact=True), "[1,2]") and not allows(asked(source, compact=True), "[1, 2]")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('start: "a"\nb: %json {"const": 9007199254740993}', "line 2: const: got the number 9007199254740993"),
        ('start: %json {\n"uniqueItems": true}', "uniqueItems"),
        ("start: %json 12", "line 1: expected a JSON schema"),
        ("start: %json", "line 1: expected JSON behind %json"),
        ('start: %json {"a": 1', "line 1: expected JSON behind %json"),
        ('start: a\n\na: "b', "line 3: a text, a pattern or a special token has no end"),
        ("start: a < b", "line 1: a text"),
        ("start: /[/]/", "line 1: a text"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_line(source: str, why: str) -> None:
    found = asked(source)
    assert isinstance(found, BadRequest) and why in found.message


def test_a_bound_of_tokens_never_ends_json_in_its_middle() -> None:
    for body in ('%json {"const": 12345}', '  %json{"const": 12345}{2}', '"max_tokens=" @a'):
        found = asked(f'start: a "b"\na[capture, max_tokens = 3]: {body}')
        assert isinstance(found, BadRequest) and "line 2: max_tokens of this rule" in found.message
    found = asked('start: a max_tokens\na[max_tokens=3]: /[a-c]{9}/ # %json\nmax_tokens: %json {"const": 12345}')
    assert isinstance(found, str), "a pattern may be cut, and a rule may have that name"
