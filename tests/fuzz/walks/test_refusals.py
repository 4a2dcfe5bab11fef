"""What a refusal says is compared with the schema."""

from random import Random
from typing import Any

import pytest

from gateway.words.request import Grammar
from protocol.errors import BadRequest
from tests.byte_grammars import check
from tests.fuzz.walks.refusals import NO_ANSWER, NO_VALUE_BEHIND, UNKNOWN, reason, untrue

REF = {"$ref": "#/$defs/a"}
NAMES_TOGETHER = "patternProperties of several parts"
REFUSED: list[tuple[Any, str]] = [
    ({"not": {}}, "not"),
    ({"extends": {}}, "extends"),
    (False, NO_ANSWER),
    ({"type": "integer", "minimum": 2, "maximum": 1}, NO_ANSWER),
    ({"enum": []}, NO_ANSWER),
    ({"items": REF, "$defs": {"a": {"enum": []}}}, NO_VALUE_BEHIND),
    ({"const": 2**60}, "a number beyond 2^53"),
    ({"multipleOf": -1}, "multipleOf"),
    ({"allOf": [{"type": "number", "multipleOf": 0.7}, {"type": "integer", "minimum": 1, "maximum": 6}]}, "multipleOf"),
    ({"minimum": 0.12345678901234567}, "bounds"),
    ({"exclusiveMinimum": 0, "maximum": 1e-15}, "bounds"),
    ({"minimum": 1e-300}, "bounds"),
    ({"exclusiveMaximum": -4.9e-35}, "a number that is not read exactly"),
    ({"const": [0.1, 9007199254740991.0]}, "a number that is not read exactly"),
    ({"multipleOf": 1e-23}, "a number that is not read exactly"),
    ({"multipleOf": 4.18e-13}, "multipleOf"),
    ({"allOf": [{"patternProperties": {"^a": {}}}, {"patternProperties": {"^[^a]|^$": {}}}]}, NAMES_TOGETHER),
    ({"minProperties": 4}, "minProperties"),
    ({"maxLength": -1}, "a negative length or count"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    ({"items": REF, "$defs": {"a": REF}}, "$ref to itself"),
    ({"$ref": "http://example.org/s"}, "$ref to another document"),
    ({"type": "string", "format": "regex"}, "format"),
    ({"type": "x"}, "type"),
    ({"patternProperties": {"^a": {}, "b$": {}}}, "patternProperties that overlap"),
    ({"pattern": "(?i)a"}, "pattern: not ECMA's"),
    ({"pattern": "a$b"}, "pattern: assertions"),
    ({"pattern": "(a"}, "pattern: not read"),
    ({"const": "\x01"}, "a control character"),
    ({"x-guidance": {}}, "x-guidance"),
]


@pytest.mark.parametrize(("schema", "row"), REFUSED)
def test_each_reason_has_a_row_and_is_true(schema: Any, row: str) -> None:
    told = check(Grammar("json", schema))
    assert isinstance(told, BadRequest)
    sentence = told.message.removeprefix("json: ")
    assert reason(sentence) == row, sentence
    assert untrue(sentence, schema, Random(0)) == ""


@pytest.mark.parametrize("schema", [{"title": "x"}, {"properties": {"not": {}}, "items": REF}])
@pytest.mark.parametrize(("other", "row"), [each for each in REFUSED if each[1] not in ("a control character", "not")])
def test_it_is_not_true_of_a_schema_without_the_keyword(schema: Any, other: Any, row: str) -> None:
    told = check(Grammar("json", other))
    assert isinstance(told, BadRequest)
    schema = {**schema, "$defs": {"a": {"type": "null"}}} if row == NO_VALUE_BEHIND else schema
    without = {key: each for key, each in schema.items() if key != "items" or row == NO_VALUE_BEHIND}
    assert untrue(told.message.removeprefix("json: "), without, Random(0))


def test_a_sentence_of_no_kind_is_not_true_of_anything() -> None:
    assert reason("new words") == untrue("new words", {}, Random(0)) == UNKNOWN
