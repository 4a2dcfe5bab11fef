"""Objects whose patterns name only what their properties name: each answer can be ended, and follows both."""

import json
import random
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from gateway.grammar_names import whole_names, with_own_names
from gateway.grammar_schemas import strict_schema
from gateway.grammars import Asked
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
        "additionalProperties": False,
        "required": [name for name in NAMES if rng.random() < (0.3 if name in own else 0.1)],
    }


@pytest.mark.parametrize("seed", range(8))
def test_random_objects_have_answers_without_dead_ends(seed: int) -> None:
    rng = random.Random(seed)
    num_answers = 0
    for _ in range(25):
        schema = object_of(rng)
        text = check(Asked("guided_json", "json", schema, True))
        if not isinstance(text, str):
            continue
        for _ in range(3):
            if answer := walked(text, rng):
                num_answers += 1
                jsonschema_rs.validate(schema, json.loads(answer))
    assert num_answers > 10


def test_the_schema_of_a_pattern_goes_to_the_properties_that_it_names() -> None:
    own = {"a": {"minimum": 1}, "b": {}, "c": True}
    schema = {"properties": own, "patternProperties": {"^[ab]$": {"maximum": 2}}, "additionalProperties": False}
    both = {"a": {"allOf": [own["a"], {"maximum": 2}]}, "b": {"allOf": [{}, {"maximum": 2}]}, "c": True}
    assert with_own_names(schema) == {"properties": both, "additionalProperties": False}


@pytest.mark.parametrize(
    "changed",
    [
        {"additionalProperties": True},
        {"properties": {"b": {}}},
        {"properties": 5},
        {"required": ["b"]},
        {"patternProperties": {"^a": {}}},
        {"patternProperties": {"^a$": {}, "^b": {}}},
        {"patternProperties": {"^($": {}}},
        {"patternProperties": {"^a*$": {}}},
        {"patternProperties": []},
    ],
)
def test_other_objects_stay_as_they_are(changed: dict[str, Any]) -> None:
    schema = {"properties": {"a": {}}, "patternProperties": {"^a$": {}}, "additionalProperties": False} | changed
    assert with_own_names(schema) is schema


@pytest.mark.parametrize(
    ("pattern", "body"),
    [
        ("^a$", "(a)"),
        ("^a$|^(b|c)$", "(a|(b|c))"),
        ("^[|]$", "([|])"),
        (r"^\|\\$", r"(\|\\)"),
        ("^$", "()"),
        *((each, "") for each in ("", "^", "$", "^a", "a$", "^a|b$", r"^a\$", "a|^b$", "^a$|")),
    ],
)
def test_a_pattern_of_whole_names_is_anchored_in_each_part(pattern: str, body: str) -> None:
    assert whole_names(pattern) == body


@pytest.mark.parametrize("pattern", ["[]", r"^a[\x01]b$", r"[^\s\S]|\x7f", r"\v"])
def test_a_pattern_that_no_name_has_is_left_out(pattern: str) -> None:
    """Else a comma or a brace would stand before a name that cannot be written."""
    schema = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False, "minProperties": 1}
    told = check(Asked("guided_json", "json", schema))
    assert not isinstance(told, str) and "minProperties (1) is greater than number of properties (0)" in told.message
    found = strict_schema({"patternProperties": {pattern: {}, "a": {}}})
    assert list(found["patternProperties"]) == ["a"]
