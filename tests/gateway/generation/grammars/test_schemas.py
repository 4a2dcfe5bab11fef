"""Schemas as llguidance gets them: what it would take for less than it says is refused."""

import itertools
import json
from typing import Any

import pytest

from gateway.generation.grammars.formats import with_exact_format
from gateway.generation.grammars.references import mapped
from gateway.generation.grammars.schemas import strict_schema
from tests.byte_grammars import allows, of_schema


def allowed(schema: Any, *texts: str) -> list[bool]:
    """Of each text, whether it is an answer."""
    found = of_schema(schema)
    return [allows(found, text) for text in texts]


def refused(schema: Any) -> str:
    with pytest.raises(ValueError, match=r"got|expected") as caught:
        strict_schema(schema)
    return str(caught.value)


def test_a_name_has_one_spelling_so_that_its_schema_holds() -> None:
    schema = {"properties": {"a": {"type": "integer"}}}
    texts = ('{"a": 1}', '{"a": "x"}', '{"\\u0061": "x"}', '{"b": "x"}', '{"a": 1, "\\u0061": "x"}')
    assert allowed(schema, *texts) == [True, False, False, True, False]


def test_texts_are_spelt_by_their_characters() -> None:
    both = '"\\ud83e\\udd8a"'
    assert allowed({"type": "string", "maxLength": 1}, '"🦊"', '"\\n"', '"\\\\"', both) == [True, True, True, False]
    assert allowed({"const": 'a "\u00e9"\n'}, json.dumps('a "\u00e9"\n', ensure_ascii=False)) == [True]


@pytest.mark.parametrize(
    "schema", [{"const": "\x01"}, {"enum": ["a", "\x1f"]}, {"properties": {"\\\x0b": {}}}, {"const": "a\x7f"}]
)
def test_characters_that_have_no_spelling_are_refused(schema: Any) -> None:
    assert "got the control character \\u00" in refused(schema)


def test_characters_with_a_short_escape_and_texts_that_look_like_one_are_not() -> None:
    assert strict_schema({"enum": ["\n\t\b\f\r", "\\u0001", "\\u007f"]})["enum"][1] == "\\u0001"


def test_names_that_are_written_twice_count_once() -> None:
    assert "minProperties: got 2, expected at most 1: names of" in refused({"minProperties": 2})
    deep = {"items": [{"minProperties": 3, "required": ["a", "a"]}]}
    assert "minProperties: got 3" in refused(deep)
    schema = {"minProperties": 2, "required": ["a"]}
    texts = ('{"a": 1, "a": 2}', '{"a": 1, "b": 2}', '{"a": 1}', '{"b": 1, "b": 2}')
    assert allowed(schema, *texts) == [False, True, False, False]


def test_what_a_reference_names_is_strict_wherever_it_stands() -> None:
    components = {"components": {"schemas": {"day": {"type": "string", "format": "date"}}}}
    schema = {"$ref": "#/components/schemas/day", **components}
    assert allowed(schema, '"2024-02-29"', '"2023-02-29"') == [True, False]
    assert "minProperties" in refused({"$ref": "#/a", "a": {"minProperties": 2}})


def test_options_of_llguidance_and_what_it_ignores_are_refused() -> None:
    assert "x-guidance" in refused({"x-guidance": {"lenient": True}, "not": {}})
    for keyword in ("divisibleBy", "disallow", "extends"):
        assert keyword in refused({"properties": {"a": {keyword: 2}}})
        assert strict_schema({"properties": {keyword: {"type": "integer"}}, "enum": [{keyword: 2}]})


def test_a_keyword_that_changes_nothing_is_as_if_it_was_not_there() -> None:
    assert strict_schema({"type": "array", "uniqueItems": False}) == strict_schema({"type": "array"})
    assert "uniqueItems" in strict_schema({"type": "array", "uniqueItems": True}), "llguidance refuses it"


def test_true_and_false_are_schemas_and_nothing_else_is() -> None:
    assert allowed(True, "1", '"a"', "[1]", "x") == [True, True, True, False]
    assert "expected a JSON schema" in refused(5)
    assert isinstance(of_schema(False), Exception)


DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


@pytest.mark.parametrize("keywords", [*itertools.permutations(("allOf", "properties", "patternProperties", "other"))])
def test_names_are_the_same_in_each_order_of_keywords(keywords: tuple[str, ...]) -> None:
    whole = {
        "allOf": [{"type": "object"}],
        "properties": {"a": {"type": "integer"}},
        "patternProperties": {"^b": {"type": "integer"}},
        "additionalProperties": False,
    }
    schema = {each: whole[each] for each in (name.replace("other", "additionalProperties") for name in keywords)}
    assert allowed(schema, '{"a": 1}', '{"b": 1}', '{"b": "x"}', '{"c": 1}') == [True, True, False, False]


@pytest.mark.parametrize("keywords", [*itertools.permutations(("allOf", "items", "additionalItems"))])
def test_items_are_the_same_in_each_order_of_keywords(keywords: tuple[str, ...]) -> None:
    whole = {"allOf": [{"type": "array"}], "items": [{"type": "integer"}], "additionalItems": False}
    schema = {**DRAFT_7, **{each: whole[each] for each in keywords}}
    assert allowed(schema, "[1]", '["a"]', "[1, 2]") == [True, False, False]


def test_properties_come_where_the_schema_has_them() -> None:
    schema = {"additionalProperties": True, "allOf": [{"properties": {"a": {}}}], "properties": {"b": {}}}
    assert list(strict_schema(schema))[:3] == ["allOf", "properties", "additionalProperties"]


EXACT: dict[str, Any] = with_exact_format({"format": "date"})


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": {"const": {"format": "date"}}}, {"properties": {"const": EXACT}}),
        ({"items": [{"format": "date"}, True]}, {"items": [EXACT, True]}),
        ({"items": {"anyOf": [{"format": "date"}]}}, {"items": {"anyOf": [EXACT]}}),
        ({"$defs": {"a": {"format": "date"}}}, {"$defs": {"a": EXACT}}),
        ({"additionalProperties": False}, {"additionalProperties": False}),
        ({"components": {"schemas": {"a": {"format": "date"}}}}, {"components": {"schemas": {"a": EXACT}}}),
        ({"properties": {"format": {"type": "string"}}}, {"properties": {"format": {"type": "string"}}}),
        ({"const": {"format": "date"}}, {"const": {"format": "date"}}),
        ({"enum": [{"format": "date"}]}, {"enum": [{"format": "date"}]}),
        ({"format": "uuid"}, {"format": "uuid"}),
        ({"format": 5}, {"format": 5}),
        (True, True),
    ],
)
def test_schemas_change_and_values_do_not(schema: Any, expected: Any) -> None:
    before = repr(schema)
    assert mapped(schema, with_exact_format) == expected
    assert repr(schema) == before
