"""References that lead to themselves before any value are refused; those that do so within a value are found."""

import random
from typing import Any

import pytest

from gateway.generation.grammars.references import check_references, is_recursive
from gateway.words.request import Grammar
from tests.byte_grammars import check, matcher_of

DATA = ("const", "enum", "default", "examples")  # keywords with values
REF = {"$ref": "#/$defs/a"}


def with_defs(**defs: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": REF}, "$defs": defs}


@pytest.mark.parametrize(
    "schema",
    [
        with_defs(a=REF),
        with_defs(a={"$ref": "#/$defs/b"}, b=REF),
        with_defs(a={"allOf": [{"type": "object"}, REF]}),
        with_defs(a={"anyOf": [REF]}),
        with_defs(a={"anyOf": [REF, {"$ref": "#/$defs/b"}]}, b={"oneOf": [REF]}),
        with_defs(a={"allOf": [{"anyOf": [REF, {"allOf": [REF]}]}]}),
        {"$ref": "#"},
        {"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/1"}]},
        with_defs(a={"anyOf": [REF, {"type": "integer"}]}),
        with_defs(a={"anyOf": [REF, False]}),
        {"items": {"$ref": "#anchor"}, "$defs": {"a": REF, "b": {"$anchor": "anchor"}}},
        {"items": REF, "$defs": {"a": {"$ref": "#/$defs/b~1c%25"}, "b/c%": REF}},
        {"items": REF, "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a/allOf/0"}]}}},
        *({"properties": {name: {"$ref": f"#/properties/{name}"}}} for name in DATA),
        {"items": {"$ref": "#/const"}, "const": {"$ref": "#/const"}},
    ],
)
def test_a_reference_that_leads_to_itself_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match="leads to itself before any value"):
        check_references(schema)
    found = check(Grammar("json", schema))
    assert not isinstance(found, str) and "leads to itself before any value" in found.message


@pytest.mark.parametrize(
    "schema",
    [
        with_defs(a={"type": "object", "properties": {"a": REF}}),
        with_defs(a={"allOf": [{"$ref": "#/$defs/b"}]}, b={"type": "integer"}),
        with_defs(a={"anyOf": []}),
        with_defs(a={"type": "null"}, b={"$ref": "#/$defs/b"}),
        with_defs(a={"$ref": "#nowhere"}),
        with_defs(a={"$ref": "#/$defs/a/b"}),
        with_defs(a={"$ref": "#/$defs/b/9"}, b=[]),
        with_defs(a={"$ref": "http://example.org#/$defs/a"}),
        with_defs(a={"$ref": 5}),
        *({name: {"$ref": f"#/{name}"}} for name in DATA),
        *({"items": {name: [{"$ref": f"#/items/{name}/0"}]}} for name in DATA),
        {"properties": {"enum": {"enum": [{"$ref": "#/properties/enum/enum/0"}]}}},
        True,
    ],
)
def test_other_references_are_left_to_the_library(schema: Any) -> None:
    check_references(schema)


def test_a_long_chain_is_followed_to_its_end() -> None:
    chain = {f"d{place}": {"$ref": f"#/$defs/d{place + 1}"} for place in range(5000)}
    first = {"$ref": "#/$defs/d0"}
    check_references({"items": first, "$defs": {**chain, "d5000": {"type": "null"}}})
    with pytest.raises(ValueError, match="leads to itself"):
        check_references({"items": first, "$defs": {**chain, "d5000": {"$ref": "#/$defs/d17"}}})


@pytest.mark.parametrize(
    ("schema", "is_recursive_one"),
    [
        ({"items": {"$ref": "#"}}, True),
        (with_defs(a={"type": "object", "patternProperties": {"": REF}}), True),
        (with_defs(a={"additionalProperties": {"$ref": "#/$defs/b"}}, b={"prefixItems": [{"not": REF}]}), True),
        ({"properties": {"x": {"$ref": "#/$defs/b"}}, "$defs": {"a": REF, "b": {}}}, False),
        (with_defs(a={"items": {"$ref": "#/$defs/b"}}, b={}), False),
        (with_defs(a={"enum": [{"$ref": "#/$defs/a"}]}), False),
        (True, False),
    ],
)
def test_a_schema_is_recursive_if_a_reference_that_counts_leads_to_itself(schema: Any, is_recursive_one: bool) -> None:
    assert is_recursive(schema) is is_recursive_one


@pytest.mark.parametrize("seed", range(5))
def test_references_lead_to_themselves_if_following_them_never_ends(seed: int) -> None:
    """Random definitions, beside a reading of them that follows each as deep as there are definitions."""
    rng = random.Random(seed)
    for _ in range(100):
        names = [f"d{place}" for place in range(rng.randint(1, 5))]
        refs = [{"$ref": f"#/$defs/{name}"} for name in names]
        defs = {
            name: rng.choice(
                (rng.choice(refs), {"allOf": rng.choices(refs, k=2)}, {"anyOf": rng.choices(refs, k=2)}, {})
            )
            for name in names
        }

        def ends(schema: Any, depth: int, defs: Any = defs) -> bool:
            if "$ref" in schema:
                return depth > 0 and ends(defs[schema["$ref"].rpartition("/")[2]], depth - 1)
            parts = [ends(each, depth) for each in schema.get("allOf", schema.get("anyOf", []))]
            return all(parts)

        schema = {"prefixItems": refs, "$defs": defs}
        if all(ends(each, len(names)) for each in defs.values()):
            check_references(schema)
        else:
            with pytest.raises(ValueError, match="leads to itself"):
                check_references(schema)


@pytest.mark.parametrize("number", ["04", "06", "07"])
@pytest.mark.parametrize("end", ["#", ""])
def test_nothing_beside_a_reference_counts_in_old_drafts(number: str, end: str) -> None:
    schema = {"$ref": "#/definitions/a", "type": "null", "not": {}, "definitions": {"a": {"type": "integer"}}}
    old = {"$schema": f"http://json-schema.org/draft-{number}/schema{end}", **schema}
    text = check(Grammar("json", old))
    assert isinstance(text, str) and matcher_of(text).try_consume_tokens([*b"17"]) == 2
    for new in (schema, {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}):
        told = check(Grammar("json", new))
        assert not isinstance(told, str) and '"not"' in told.message
