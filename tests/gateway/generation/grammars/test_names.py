"""Objects whose patterns and properties leave few names: each answer can be ended, and follows all of them."""

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from gateway.generation.grammars.names import MAX_LOOKS, names_of, one_of
from gateway.generation.grammars.schemas import strict_schema
from gateway.words.request import Grammar
from runtime.grammars import compile_grammar
from tests.byte_grammars import END, VOCABULARY, check

NAMES = ("a", "b", "ab", "", "é", 'q"', "a|b", "/")
PATTERNS = (
    "^a$",
    "^(a|b)$",
    "^a$|^b$",
    "^[ab]$",
    "^a?b?$",
    "^$",
    '^(é|q")$',
    r"^a\|b$",
    "^/$",
    "^a",
    "b$",
    "^a|b$",
    "^a+$",
    "",
    ".",
    "^[^a]",
    r"^[\s\S]",
)
VALUES: tuple[dict[str, Any], ...] = (
    {"type": "integer", "minimum": 5, "maximum": 9},
    {"maximum": 7},
    {"enum": [6, True]},
    {},
)


def walked(text: str, rng: random.Random) -> bytes:
    """A random answer, which can go on everywhere."""
    matching, answer = compile_grammar(text, VOCABULARY).begin((1 << 62,)), b""
    while len(answer) < 300:
        bits = np.unpackbits(matching.mask().view(np.uint8), bitorder="little")[:END]
        assert not matching.fault, (answer, matching.fault)
        may = [int(each) for each in np.flatnonzero(bits)]
        if not may or (matching.matcher.is_accepting() and rng.random() < 0.5):
            return answer
        commas = [each for each in may if each == ord(",")]
        short = [each for each in may if chr(each) in '"}]9'] or may
        token = commas[0] if commas and rng.random() < 0.7 else rng.choice(short if len(answer) > 60 else may)
        matching.read([token])
        answer += bytes([token])
    return b""


def object_of(rng: random.Random) -> dict[str, Any]:
    own = rng.sample(NAMES, rng.randint(0, 4))
    patterns = rng.sample(PATTERNS, rng.randint(1, 2))
    return {
        "type": "object",
        "properties": {name: rng.choice(VALUES) for name in own},
        "patternProperties": {each: rng.choice(VALUES) for each in patterns},
        "additionalProperties": rng.choice((False, False, True, {"type": "null"})),
        "required": [name for name in NAMES if rng.random() < (0.3 if name in own else 0.1)],
    }


@pytest.mark.parametrize("seed", range(8))
def test_random_objects_have_answers_without_dead_ends(seed: int) -> None:
    rng = random.Random(seed)
    num_answers = 0
    for _ in range(25):
        schema = object_of(rng)
        text = check(Grammar("json", schema, True))
        if not isinstance(text, str):
            continue
        for _ in range(3):
            if answer := walked(text, rng):
                num_answers += 1
                jsonschema_rs.validate(schema, json.loads(answer))
    assert num_answers > 10


def with_own(schema: dict[str, Any], *others: str) -> dict[str, Any]:
    """The schema in a document whose names include `others`."""
    return names_of({"allOf": [schema, {"required": list(others)}]}).with_own(schema)


def test_the_schema_of_a_pattern_goes_to_the_properties_that_it_names() -> None:
    own = {"a": {"minimum": 1}, "b": {}, "c": True}
    schema = {"properties": own, "patternProperties": {"^[ab]$": {"maximum": 2}}, "additionalProperties": False}
    both = {"a": {"allOf": [own["a"], {"maximum": 2}]}, "b": {"allOf": [{}, {"maximum": 2}]}, "c": True}
    assert with_own(schema) == {"properties": both, "additionalProperties": False}


def test_a_pattern_names_what_other_parts_of_the_document_name() -> None:
    schema = {"patternProperties": {"^(a|b)$": {"maximum": 2}, "^x": {}}}
    left = {"properties": {"a": {"maximum": 2}, "b": {"maximum": 2}}, "patternProperties": {"^x": {}}}
    assert with_own(schema, "a", "b") == left
    assert with_own(schema, "a") == schema


@pytest.mark.parametrize(
    ("patterns", "named"),
    [
        ([""], []),
        (["^"], []),
        ([r"^[\s\S]"], [""]),
        (["^[^a]", "^a.|^a[^a]", "^$"], ["a"]),
        (["^a", "^([^a]|$)"], []),
    ],
)
def test_where_patterns_leave_no_other_name_none_is_allowed(patterns: list[str], named: list[str]) -> None:
    schema = {"patternProperties": {each: {"type": "null"} for each in patterns}, "additionalProperties": {"const": 1}}
    found = with_own(schema, *named)
    assert found["additionalProperties"] is False and found["patternProperties"] == schema["patternProperties"]
    assert found.get("properties", {}) == {name: {"const": 1} for name in named}
    if named:
        assert with_own(schema) == schema


@pytest.mark.parametrize(
    "changed",
    [
        {"properties": 5},
        {"patternProperties": {"^a": {}}},
        {"patternProperties": {"^($": {}}},
        {"patternProperties": {"^a*$": {}}},
        {"patternProperties": {"^a$|b": {}}},
        {"patternProperties": {r"^a\$": {}}},
        {"patternProperties": []},
    ],
)
def test_other_objects_stay_as_they_are(changed: dict[str, Any]) -> None:
    schema = {"properties": {"a": {}}, "patternProperties": {"^a$": {}}, "additionalProperties": False} | changed
    assert with_own(schema) == schema


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("^a$", "a"),
        ("^a$|^(b|c)$", "abc"),
        ("^[|]$", "|"),
        (r"^\|\\$", ["|\\"]),
        (r"^[a[\s&&[ ]]|]$", "a |"),
        ("^$", [""]),
        *((each, ()) for each in ("", "^", "$", "^a", "a$", "^a|b$", r"^a\$", "a|^b$", "^a$|")),
    ],
)
def test_a_pattern_of_whole_names_is_anchored_in_each_part(pattern: str, names: Sequence[str]) -> None:
    found = with_own({"patternProperties": {pattern: True}, "additionalProperties": False}, "", "a", "b", "c", *names)
    assert found.get("properties", {}).keys() == set(names)
    assert ("patternProperties" in found) == (not names)


def test_an_empty_pattern_is_one_of_several() -> None:
    assert one_of(["", "^a$"]) == "(?:)|^a$"


@pytest.mark.parametrize("pattern", ["[]", r"^a[\x01]b$", r"[^\s\S]|\x7f", r"\v"])
def test_a_pattern_that_no_name_has_is_left_out(pattern: str) -> None:
    """Else a comma or a brace would stand before a name that cannot be written."""
    schema = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False, "minProperties": 1}
    told = check(Grammar("json", schema))
    assert not isinstance(told, str) and "minProperties (1) is greater than number of properties (0)" in told.message
    found = strict_schema({"patternProperties": {pattern: {}, "a": {}}})
    assert list(found["patternProperties"]) == ["a"]


APART: list[dict[str, Any]] = [
    {"patternProperties": {"^a": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
    {"patternProperties": {"^([^a]|$)": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
]


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": APART},
        {"$ref": "#/$defs/x", **APART[1], "$defs": {"x": APART[0]}},
        {**APART[0], "anyOf": [APART[1], {"type": "null"}]},
        {"properties": {"p": APART[0]}, "allOf": [{"properties": {"p": APART[1]}}]},
    ],
)
def test_patterns_that_leave_no_other_name_only_together_are_refused_with_the_reason(schema: dict[str, Any]) -> None:
    told = check(Grammar("json", schema))
    assert not isinstance(told, str) and "patternProperties: got 2 patterns in parts of the schema" in told.message
    assert "they leave no other name, expected them in one part" in told.message


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"p": APART[0], "q": APART[1]}},
        {"anyOf": [{**each, "required": ["x"]} for each in APART]},
        {"allOf": [APART[0], {**APART[1], "additionalProperties": False}]},
        {"allOf": [APART[0], {"patternProperties": {"^b": {"type": "string"}}}]},
        {
            "allOf": [
                {"patternProperties": {**APART[0]["patternProperties"], **APART[1]["patternProperties"]}},
                APART[0],
            ]
        },
    ],
)
def test_patterns_that_do_not_hold_together_are_followed(schema: dict[str, Any]) -> None:
    text = check(Grammar("json", schema, True))
    assert isinstance(text, str), text
    for seed in range(20):
        assert walked(text, random.Random(seed)) is not None


def test_patterns_with_one_meaning_hold_together() -> None:
    schema = {"patternProperties": {r"\<": {"type": "integer"}, "<": {"maximum": 3}}, "required": ["<"]}
    assert strict_schema(schema)["patternProperties"] == {"<": {"allOf": [{"type": "integer"}, {"maximum": 3}]}}


def test_too_many_patterns_beside_names_are_refused() -> None:
    patterns: dict[str, Any] = {f"^x{place}$": {} for place in range(MAX_LOOKS // 1000 + 1)}
    schema = {"required": [f"n{place}" for place in range(1000)], "patternProperties": patterns}
    with pytest.raises(ValueError, match="patternProperties: got too many patterns beside 1000 names"):
        names_of(schema).with_own(schema)
