"""Refusals are about the client's own schema: no changed number, class or option of llguidance is in them."""

from typing import Any

import pytest

from gateway.words.request import Grammar
from tests.byte_grammars import check

REF = {"$ref": "#/$defs/a"}
FALSE_BEHIND = {"type": "object", "properties": {"x": REF}, "$defs": {"a": {"type": "string", "maxLength": 1}}}


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (False, "got the schema false, which no value follows"),
        ({"enum": []}, "Unsatisfiable schema: no value is left of an enum, a union or a list of types"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "Unsatisfiable schema: no number lies within the bounds"),
        (
            {"type": "integer", "minimum": 2.2, "maximum": 2.8},
            "Unsatisfiable schema: no integer lies within the bounds",
        ),
        (
            {"allOf": [{"type": "number", "multipleOf": 7}, {"minimum": 1, "maximum": 6}]},
            "no multiple of multipleOf lies",
        ),
        (
            {"oneOf": [{"type": "number"}, {"type": "integer"}]},
            "oneOf: expected parts of which no value can follow two",
        ),
        ({"pattern": "a$b"}, "an assertion such as $ or \\b within the pattern"),
        ({"patternProperties": {"^[^a]": {}, "b$": {}}}, "regexes /^[^a]/ and /b$/ are not disjoint"),
        (
            {**FALSE_BEHIND, "$defs": {"a": {"type": "string", "pattern": "^[a-z]{400}$", "maxLength": 1}}},
            "what a reference names allows no value: no text follows its pattern, format and length while processing"
            " #/$defs/a",
        ),
    ],
)
def test_a_refusal_is_in_the_words_of_the_schema(schema: Any, sentence: str) -> None:
    told = check(Grammar("json", schema))
    assert not isinstance(told, str) and sentence in told.message, told
    for theirs in ("coerce_one_of", "json-schema:///", "x00", "anyOf is empty"):
        assert theirs not in told.message


def test_a_schema_with_a_reference_to_some_value_is_followed() -> None:
    assert isinstance(check(Grammar("json", FALSE_BEHIND)), str)
