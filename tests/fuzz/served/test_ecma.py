"""Patterns as ECMA reads them. The expected values are those of node 20."""

import re

import jsonschema_rs
import pytest

from tests.fuzz.served.ecma import PYTHON_END, RUST_END, with_patterns, written_out


@pytest.mark.parametrize(
    ("pattern", "follow", "others"),
    [
        (r"^.$", "a\x85\ufeff\U0001f600", "\n\r\u2028\u2029"),
        (r"^\s$", "\t\n\v\f\r \u00a0\u1680\u2005\u2028\u2029\u202f\u205f\u3000\ufeff", "a\x85\u200b\u180e"),
        (r"^\S$", "a.\x85\u200b\U0001f600", "\t \ufeff\u2028"),
        (r"^\d$", "09", "a\u0663"),
        (r"^\D$", "a\u0663", "09"),
        (r"^\w$", "aZ_9", "\u00e9-[^"),
        (r"^\W$", "\u00e9-[]^\\@`", "aZ_9"),
        (r"^[\W]$", "\u00e9-[]^\\@`", "aZ_9"),
        (r"^[^\S\n]$", "\t \ufeff", "a\n."),
        (r"^[\s.a]$", ".a \ufeff", "b\x85"),
        (r"^\.$", ".", "a"),
        (r"^\\s$", "", "s \\"),
        (r"^[\].]$", "].", "a"),
        (r"^[$a]$", "$a", "\n"),
        (r"^\$$", "$", "a"),
        (r"^[^]$", "a\n\u2028\U0001f600", ""),
        (r"^[]$", "", "a]"),
        (r"^[.]$", ".", "a"),
    ],
)
def test_a_pattern_means_what_ecma_means(pattern: str, follow: str, others: str) -> None:
    rust, python = (
        jsonschema_rs.validator_for({"pattern": written_out(pattern, RUST_END)}),
        re.compile(written_out(pattern, PYTHON_END)),
    )
    for text in follow:
        assert rust.is_valid(text) and python.search(text), ascii(text)
    for text in others:
        assert not rust.is_valid(text) and not python.search(text), ascii(text)


def test_the_end_is_behind_the_last_line_break() -> None:
    assert not re.search(written_out("^a$", PYTHON_END), "a\n")
    assert not jsonschema_rs.validator_for({"pattern": written_out("^a$", RUST_END)}).is_valid("a\n")


def test_own_patterns_of_a_schema_are_written_out_and_the_rest_stays() -> None:
    schema = {"pattern": "a.", "patternProperties": {r"\s": {"pattern": "."}}, "const": "."}
    found = with_patterns(RUST_END)(schema)
    assert found["pattern"] == written_out("a.", RUST_END) != "a." and found["const"] == "."
    assert list(found["patternProperties"].values()) == [{"pattern": "."}]
