"""Multiples, bounds and values in several parts of a schema: answers go on, and follow all parts, or the schema is
refused with the reason."""

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateway.generation.grammars.together import MAX_DEPTH, MAX_WAYS, check_together
from gateway.words.request import Grammar
from tests.byte_grammars import END, check, matcher_of

STEPS = (1, 2, 3, 0.5, 0.25, 0.7, 0.01, 12, 100_000, 1e-9, 10)
TYPES: Any = ("integer", "number", ["number", "boolean"], ["boolean", "integer"])
REFUSALS = ("multipleOf", "lies within the bounds", "no value is left", "is unsatisfiable")


def parts(rng: random.Random) -> list[dict[str, Any]]:
    low, width = rng.choice((0, 1, 0.5, -0.5, -2)), rng.choice((0, 0.001, 0.5, 1, 4))
    found: list[dict[str, Any]] = [{"multipleOf": rng.choice(STEPS)} for _ in range(rng.randint(1, 2))]
    found += [{rng.choice(("minimum", "exclusiveMinimum")): low}, {"maximum": low + width}]
    found += [{"type": rng.choice(TYPES)}]
    return found if rng.random() < 0.7 else [*found, {"enum": [low, low + width, 0.5, 7]}]


def forms(some: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Schemas in which these parts hold together for "x"."""
    first, *rest = some
    one, two = ({"properties": {"x": each}} for each in (first, {"allOf": rest}))
    return [
        {"properties": {"x": {"allOf": some}}},
        {"properties": {"x": {**first, "anyOf": [{"allOf": rest}]}}},
        {"properties": {"x": {"$ref": "#/$defs/a", "allOf": rest}}, "$defs": {"a": first}},
        {"allOf": [one, two]},
        {**one, "allOf": [{"additionalProperties": {"allOf": rest}}]},
        {"properties": {"x": {"oneOf": [{"allOf": some}, {"type": "null"}]}}},
    ]


@pytest.mark.parametrize("seed", range(40))
def test_numbers_that_several_parts_rule_follow_all_or_are_refused(seed: int) -> None:
    rng = random.Random(seed)
    for form in forms(parts(rng)):
        schema = {"type": "object", **form, "required": ["x"], "maxProperties": 1}
        found = check(Grammar("json", schema))
        if not isinstance(found, str):
            assert any(each in found.message for each in REFUSALS), (schema, found.message)
            continue
        answer = walked(found, rng)
        exact = json.loads(json.dumps(schema), parse_float=Decimal)
        Draft202012Validator(exact).validate(json.loads(answer, parse_float=Decimal))


def walked(text: str, rng: random.Random) -> str:
    """An answer, byte by byte. It must be able to go on."""
    matcher, answer = matcher_of(text), b""
    for _ in range(400):
        allowed = [byte for byte in range(33, END) if matcher.deep_copy().try_consume_tokens([byte])]
        if not allowed:
            assert matcher.is_accepting(), answer
            break
        closing = [byte for byte in allowed if byte in b"}]"]
        byte = rng.choice(closing or allowed)
        matcher.consume_token(byte)
        answer += bytes([byte])
    return answer.decode()


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": "integer"}, {"multipleOf": 0.7, "minimum": 1, "maximum": 4}]},
        {"allOf": [{"type": "number", "multipleOf": 0.25}, {"minimum": 0.4}, {"maximum": 0.5}]},
        {"allOf": [{"type": "number", "multipleOf": 100_000}, {"multipleOf": 100_000}]},
        {"allOf": [{"type": "number", "multipleOf": 65_537}, {"multipleOf": 65_539}]},
        {"allOf": [{"type": "number", "multipleOf": 0.25}, {"const": 0.5}]},
        {"allOf": [{"type": ["number", "string"], "multipleOf": 1e-9}, {"multipleOf": 10}, {"maximum": 5}]},
        {"allOf": [{"type": ["number", "null"], "multipleOf": 0.25}, {"minimum": 0.4}, {"maximum": 0.5}]},
        {"allOf": [{"items": {"type": "number", "multipleOf": 0.25}}, {"items": {"minimum": 0.5, "maximum": 0.5}}]},
    ],
)
def test_what_is_not_followed_is_refused_with_the_reason(schema: Any) -> None:
    with pytest.raises(ValueError, match="multipleOf: got"):
        check_together(schema)
    told = check(Grammar("json", schema))
    assert not isinstance(told, str) and "multipleOf: got" in told.message


def test_many_ways_and_long_chains_are_refused_beside_a_multiple() -> None:
    union = {"anyOf": [{"minimum": place} for place in range(100)]}
    with pytest.raises(ValueError, match=f"more than {MAX_WAYS} ways"):
        check_together({"multipleOf": 2, "allOf": [union, union]})
    chain = {f"d{place}": {"$ref": f"#/$defs/d{place + 1}"} for place in range(MAX_DEPTH + 2)}
    with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} references"):
        check_together({"$ref": "#/$defs/d0", "$defs": {**chain, f"d{MAX_DEPTH + 2}": {"multipleOf": 2}}})


def test_a_schema_within_itself_is_looked_at_once() -> None:
    tree = {
        "type": "object",
        "properties": {"x": {"multipleOf": 2}, "next": {"$ref": "#"}},
        "patternProperties": {"x": {}},
    }
    check_together(tree)
    assert isinstance(check(Grammar("json", tree)), str)
