"""Two validators: numbers count exactly, patterns are read as ECMA does, and what a schema refuses is told."""

from typing import Any

import pytest

from tests.fuzz.served.validators import NotJudged, wrong_with


@pytest.mark.parametrize(
    ("text", "schema", "is_right"),
    [
        ("0.3", {"multipleOf": 0.1}, True),
        ("0.31", {"multipleOf": 0.1}, False),
        ("9007199254740993", {"const": 9007199254740993}, True),
        ("9007199254740992", {"const": 9007199254740993}, False),
        ("9007199254740992.5", {"maximum": 9007199254740992}, False),
        ("9007199254740991.94", {"anyOf": [{"exclusiveMaximum": 2**53}, {"type": "null"}]}, True),
        ("38623522062597501808.2", {"oneOf": [{"multipleOf": 0.3}, {"anyOf": [{"type": "null"}]}]}, True),
        ("0", {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, False),
        ("1.0", {"type": "integer"}, True),
        ("1e2", {"type": "integer"}, True),
        ("1.5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, False),
        ("1.5e1680490", {"type": "number"}, True),
        ("true", {"enum": [1]}, False),
        ('"a\\n"', {"type": "string", "pattern": "^a$"}, False),
        ('"2023-02-29"', {"format": "date"}, False),
        ('"2024-02-29"', {"format": "date"}, True),
        ('{"a": 1, "b": 2}', {"patternProperties": {"^a": {}}, "additionalProperties": False}, False),
        ('{"a": 1}', {"patternProperties": {"": {}}, "additionalProperties": False}, True),
        ('{"a": 1}', {"patternProperties": {"": {"type": "null"}}}, False),
        ('"\u0663"', {"pattern": "^\\d$"}, False),
        ('{"\\n\u2028": 1}', {"patternProperties": {"^.*$": False}}, True),
        ('"\ufeff"', {"pattern": "^[^\\S\\n]$"}, True),
        ("1", False, False),
        ("1", True, True),
        ("NaN", {}, False),
        ("1 2", {}, False),
        ("1", {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}, False),
    ],
)
def test_a_text_follows_its_schema_or_not(text: str, schema: Any, is_right: bool) -> None:
    found = wrong_with(text, schema)
    assert (found == "") == is_right and not found.startswith("disputed"), found


def test_validators_that_disagree_in_what_neither_is_good_at_are_told() -> None:
    """Python's takes no leap second, and no value beside it says whose matter that is."""
    found = wrong_with('"23:59:60Z"', {"anyOf": [{"format": "time"}, {"const": 1}]})
    assert found == "disputed: '23:59:60Z' is not a 'time'"


@pytest.mark.parametrize("schema", [{"type": "x"}, {"$ref": "http://example.org/s"}, {"pattern": "("}])
def test_a_schema_that_is_none_is_not_judged(schema: Any) -> None:
    with pytest.raises(NotJudged):
        wrong_with('"a"', schema)


@pytest.mark.parametrize("number", ["1E{}", "-2.5e{}", "1E-{}"])
def test_a_number_with_a_long_exponent_is_judged(number: str) -> None:
    text = number.format("96422161383306907135069098")
    assert wrong_with(text, {"additionalProperties": {"type": "boolean"}}) == ""
    assert wrong_with(text, {"type": "string"}) and wrong_with(text, {"maximum": 1, "minimum": 0.5})
