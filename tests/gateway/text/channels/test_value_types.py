import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.channels.value_types import MAX_LOOKS, json_of, may_be_null, value_types


def types(schema: Any, **more: Any) -> set[str]:
    return set(value_types({"type": "object", "properties": {"key": schema}, **more}, "key"))


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, {"array", "null"}),
        ({"oneOf": [{"allOf": [{"type": "boolean"}]}]}, {"boolean"}),
        ({"enum": ["a", 1, None]}, {"string", "number", "null"}),
        ({"const": {"a": 1}}, {"object"}),
        ({"$ref": "#/$defs/Colour"}, {"number"}),
        ({"$ref": "#/$defs/a~1b"}, {"array"}),
        ({"$ref": "https://example.com/schema"}, {"string"}),
        ({"$ref": "#/$defs/Absent"}, {"string"}),
        ({"description": "anything"}, {"string"}),
        ({}, {"string"}),
        (True, {"string"}),
    ],
)
def test_types_of_a_parameter(schema: Any, wanted: set[str]) -> None:
    definitions = {"Colour": {"type": "number"}, "a/b": {"type": "array"}}
    assert types(schema, **{"$defs": definitions}) == wanted


def test_a_parameter_that_the_schema_does_not_name() -> None:
    assert value_types({"properties": {}, "additionalProperties": {"type": "integer"}}, "key") == {"integer"}
    assert value_types({"properties": {}, "additionalProperties": False}, "key") == {"string"}
    assert value_types(None, "key") == {"string"}


def test_a_schema_that_leads_back_to_itself_ends() -> None:
    assert types({"$ref": "#/properties/key"}) == {"string"}
    assert types({"anyOf": [{"type": "null"}, {"$ref": "#/properties/key"}]}) == {"null"}


def test_only_so_many_schemas_are_looked_at() -> None:
    many: Any = {"anyOf": [{"anyOf": [{"type": "null"}] * MAX_LOOKS}] * MAX_LOOKS}
    assert types(many) == {"string"}
    assert types({"anyOf": [{"type": "null"}, *[{}] * MAX_LOOKS]}) == {"null"}
    assert types({"anyOf": [*[{}] * MAX_LOOKS, {"type": "null"}]}) == {"string"}  # it comes too late to be looked at


@pytest.mark.parametrize(
    ("text", "of", "wanted"),
    [
        ("5", {"integer"}, "5"),
        ("5", {"string"}, '"5"'),
        ("5", {"string", "integer"}, "5"),
        (" -1.5e3\n", {"number"}, "-1.5e3"),
        ("five", {"integer"}, '"five"'),
        ("1.50", {"integer"}, "1.50"),
        ("true", {"boolean"}, "true"),
        ("True", {"boolean"}, "true"),
        ("True", {"integer"}, '"True"'),
        ("null", {"string", "null"}, "null"),
        ("None", {"object", "null"}, "null"),
        ("null", {"integer"}, "null"),
        ("null", {"string"}, '"null"'),
        ('{"a": [1, 2]}', {"object"}, '{"a": [1, 2]}'),
        ("[1,\n2]", {"array"}, "[1,\n2]"),
        ("[1", {"array"}, '"[1"'),
        ("{'a': 1}", {"object"}, "\"{'a': 1}\""),
        ('"quoted"', {"object"}, '"\\"quoted\\""'),
        ("NaN", {"number"}, '"NaN"'),
        ("", {"integer"}, '""'),
    ],
)
def test_the_json_of_a_text(text: str, of: set[str], wanted: str) -> None:
    assert json_of(text, frozenset(of)) == wanted


@given(st.text(), st.sets(st.sampled_from("string integer number boolean null object array".split())))
def test_any_text_is_json_then(text: str, of: set[str]) -> None:
    value = json.loads(json_of(text, frozenset(of)))
    assert value == text or not isinstance(value, str)


def test_what_may_be_null() -> None:
    assert [text for text in ("", "n", "null", "Non", "nil", "nulls", " ") if may_be_null(text)] == [
        "",
        "n",
        "null",
        "Non",
    ]
