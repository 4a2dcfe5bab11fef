"""Schemas whose values never end are refused, by whatever keyword a value needs another one; in all others each answer
that has begun can be ended."""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jsonschema_rs
import numpy as np
import pytest

from gateway.generation.grammars.endings import MAX_LOOKS, check_endings
from gateway.generation.grammars.names import names_of
from runtime.grammars import CompiledGrammar, Matching, compile_grammar
from tests.byte_grammars import END, VOCABULARY, of_schema

REF: Final = {"$ref": "#/$defs/a"}
OBJECT: Final = {"type": "object"}
WITHIN: Final = {**OBJECT, "properties": {"x": REF}, "required": ["x"]}
CLOSED: Final = {"additionalProperties": False}
NULL: Final = {"type": "null"}


def of_definition(a: Any, **others: Any) -> dict[str, Any]:
    return {**OBJECT, "properties": {"x": REF}, "$defs": {"a": a, **others}}


@pytest.mark.parametrize(
    "a",
    [
        WITHIN,
        {"anyOf": [WITHIN, {"allOf": [WITHIN]}]},
        {"anyOf": [WITHIN, {"type": "array", "items": REF, "minItems": 1}]},
        {"anyOf": [False, WITHIN]},
        {"anyOf": [{**NULL, "enum": [5]}, WITHIN]},
        {"anyOf": [{"allOf": [NULL, {"type": "integer"}]}, WITHIN]},
        {"oneOf": [{"type": "array", "minItems": 2, "maxItems": 1}, WITHIN]},
        {"anyOf": [{**OBJECT, "required": ["x"], **CLOSED}, WITHIN]},
        {**OBJECT, "patternProperties": {"^n": REF}, **CLOSED, "required": ["n1"]},
        {**OBJECT, "patternProperties": {"^n": REF}, "required": ["n1"]},
        {**OBJECT, "patternProperties": {"^n1$": REF}, "required": ["n1"]},
        {**OBJECT, "patternProperties": {r"^\S": REF}, "required": ["n1"]},
        {**OBJECT, "properties": {"n1": {}}, "patternProperties": {"^n": REF}, "required": ["n1"]},
        {**OBJECT, "additionalProperties": REF, "required": ["n1"]},
        {**OBJECT, "additionalProperties": REF, "minProperties": 1},
        {**OBJECT, "properties": {"y": {}}, "required": ["y"], "additionalProperties": REF, "minProperties": 2},
        {**OBJECT, "patternProperties": {"": REF}, "minProperties": 1},
        {**OBJECT, "patternProperties": {"^n": REF}, **CLOSED, "minProperties": 1},
        {**OBJECT, "patternProperties": {"^n$": REF}, **CLOSED, "minProperties": 1},
        {**OBJECT, "properties": {"x": REF}, **CLOSED, "minProperties": 1},
        {"allOf": [{**OBJECT, "properties": {"x": REF}}, {"required": ["x"]}]},
        {"allOf": [{**OBJECT, "additionalProperties": REF}, {"minProperties": 1}]},
        {"allOf": [{"type": ["object", "null"], "additionalProperties": REF}, {**OBJECT, "minProperties": 1}]},
        {"type": "array", "items": REF, "minItems": 1},
        {"type": "array", "prefixItems": [{}], "items": REF, "minItems": 2},
        {"type": "array", "prefixItems": [REF], "minItems": 1},
        {"type": "array", "prefixItems": [{}, REF], "minItems": 2},
        {"allOf": [{"type": "array", "prefixItems": [{}, REF]}, {"minItems": 2}]},
    ],
)
def test_a_reference_that_each_value_needs_again_is_refused(a: Any) -> None:
    told = of_schema(of_definition(a))
    assert not isinstance(told, str)
    assert told.message.endswith("the reference '#/$defs/a' leads to itself in each value")


@pytest.mark.parametrize(
    "a",
    [
        {**WITHIN, "required": []},
        {"anyOf": [WITHIN, NULL]},
        {"anyOf": [WITHIN, {"enum": [{"x": 1}]}]},
        {"anyOf": [WITHIN, {"const": []}]},
        {"anyOf": [WITHIN, {"type": "integer"}]},
        {**WITHIN, "type": ["object", "null"]},
        {key: value for key, value in WITHIN.items() if key != "type"},
        {**OBJECT, "patternProperties": {"^n": REF}, "required": ["m"]},
        {**OBJECT, "patternProperties": {"^n": REF}, "minProperties": 1},
        {**OBJECT, "patternProperties": {"^n": REF, "^m": {}}, **CLOSED, "minProperties": 1},
        {**OBJECT, "properties": {"x": REF, "y": False}},
        {**OBJECT, "properties": {"y": {}}, "required": ["y"], "additionalProperties": REF, "minProperties": 1},
        {"type": "array", "items": REF, "minItems": 0},
        {"type": "array", "prefixItems": [REF]},
        {"type": "array", "prefixItems": [{}], "items": REF, "minItems": 1},
        {"type": "array", "items": {"anyOf": [WITHIN, NULL]}, "minItems": 3},
    ],
)
def test_a_reference_that_a_value_may_be_without_is_followed(a: Any) -> None:
    assert isinstance(of_schema(of_definition(a)), str)


@pytest.mark.parametrize(
    "schema",
    [
        of_definition({**WITHIN, "properties": {"x": {"$ref": "#/$defs/b"}}}, b={"allOf": [REF]}),
        {**OBJECT, "required": ["n"], "properties": {"n": {"$ref": "#"}}},
        {"anyOf": [NULL, {"type": "array", "items": {"$ref": "#/anyOf/1"}, "minItems": 1}]},
        {**of_definition(WITHIN), "properties": {"y": {"anyOf": [NULL, REF]}}},
        {**of_definition(WITHIN), "properties": {}, "patternProperties": {"^y": REF}},
        {"type": "array", "prefixItems": [NULL, REF], "$defs": {"a": WITHIN}},
    ],
)
def test_what_never_ends_is_refused_wherever_an_answer_could_begin_it(schema: Any) -> None:
    told = of_schema(schema)
    assert not isinstance(told, str) and "leads to itself in each value" in told.message


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": REF, "maxItems": 0, "$defs": {"a": WITHIN}},
        {"type": "array", "prefixItems": [NULL, REF], "maxItems": 1, "$defs": {"a": WITHIN}},
        {**NULL, "$defs": {"a": WITHIN}},
    ],
)
def test_what_no_answer_begins_may_never_end(schema: Any) -> None:
    check_endings(schema, names_of(schema).matches)


def test_values_that_are_listed_end() -> None:
    schema = of_definition({**WITHIN, "const": {"x": 1}})
    check_endings(schema, names_of(schema).matches)


def test_as_many_properties_as_are_needed_have_to_end() -> None:
    for least in (1, 2):
        schema = of_definition({**OBJECT, "properties": {"x": REF, "y": NULL}, **CLOSED, "minProperties": least})
        if least == 1:
            check_endings(schema, names_of(schema).matches)
        else:
            with pytest.raises(ValueError, match="in each value"):
                check_endings(schema, names_of(schema).matches)


def test_references_that_never_end_only_together_are_refused_so() -> None:
    both = {"allOf": [REF, {"$ref": "#/$defs/b"}]}
    a = {**OBJECT, "properties": {"x": both}}
    told = of_schema({**OBJECT, "properties": {"x": both}, "$defs": {"a": a, "b": {**OBJECT, "required": ["x"]}}})
    assert not isinstance(told, str)
    assert told.message.endswith("the reference '#/$defs/a' leads to itself in each value, with what holds beside it")


@pytest.mark.parametrize(
    "a",
    [
        {"$ref": 5, "items": REF},
        {"anyOf": 5, "items": REF},
        {"prefixItems": 5, "items": REF, "type": {}, "minItems": -1, "maxItems": -2},
        {"required": 5, "properties": 5, "additionalProperties": REF, "minProperties": None, "enum": 5},
        {"$ref": "#anchor", "items": REF},
    ],
)
def test_what_is_no_schema_is_left_to_the_library(a: Any) -> None:
    schema = of_definition(a)
    check_endings(schema, names_of(schema).matches)


def test_a_recursive_schema_of_too_much_work_is_refused() -> None:
    named: dict[str, Any] = {f"n{place}": {} for place in range(MAX_LOOKS // 20)}
    schema = {"properties": named, "anyOf": [{"minimum": place} for place in range(21)]}
    check_endings(schema, names_of(schema).matches)
    with pytest.raises(ValueError, match=r"more than \d+ schemas in parts that hold together, beside \$ref"):
        check_endings({**schema, "items": {"$ref": "#"}}, names_of(schema).matches)


def test_a_recursive_schema_of_too_many_ways_is_refused() -> None:
    some = [{"anyOf": [{"minimum": place} for place in range(70)]}] * 2
    schema = {"items": {"allOf": some}}
    check_endings(schema, names_of(schema).matches)
    with pytest.raises(ValueError, match=r"more than \d+ ways .* beside \$ref"):
        check_endings({**schema, "prefixItems": [{"$ref": "#"}]}, names_of(schema).matches)


def test_what_many_references_and_unions_lead_to_is_looked_at_once() -> None:
    named = {f"n{place}": {"anyOf": [NULL, {"$ref": "#", "description": "again"}]} for place in range(2000)}
    schema = {**OBJECT, "properties": named, "required": [*named]}
    check_endings(schema, names_of(schema).matches)
    endless = {**schema, "properties": {**named, "n0": {"$ref": "#"}}}
    with pytest.raises(ValueError, match=r"'#' leads to itself in each value$"):
        check_endings(endless, names_of(schema).matches)


# ---- random schemas ----

NAMES: Final = ("a", "b", "ab")
SCALARS: Final = ({"type": "null"}, {"type": "boolean"}, {"const": 1}, {"type": "integer"})


def definition(rng: random.Random, depth: int = 0) -> Any:
    """A schema that refers to others by each keyword that can make a value need another one."""

    def one() -> Any:
        kind = rng.choices(("scalar", "reference", "inline"), (1, 4, 0 if depth else 1))[0]
        if kind == "inline":
            return definition(rng, 1)
        return rng.choice(SCALARS) if kind == "scalar" else {"$ref": f"#/$defs/{rng.choice('pqr')}"}

    match rng.choice(("object", "object", "patterns", "array", "anyOf", "allOf")):
        case "object":
            named = {name: one() for name in rng.sample(NAMES, rng.randint(1, 2))}
            required = [name for name in NAMES if rng.random() < (0.6 if name in named else 0.1)]
            others = rng.choice((False, True, one()))
            return {**OBJECT, "properties": named, "required": required, "additionalProperties": others}
        case "patterns":
            patterns = {each: one() for each in rng.choice((["^a"], ["^a", "^b"], [""], ["^b$"]))}
            asked = rng.choice(({"minProperties": 1}, {"required": [rng.choice(NAMES)]}, {}))
            return {**OBJECT, "patternProperties": patterns, **asked, **rng.choice((CLOSED, {}))}
        case "array":
            firsts = [one() for _ in range(rng.randint(0, 2))]
            least = rng.randint(0, 2)
            return {"type": "array", "minItems": least, **({"prefixItems": firsts} if firsts else {}), "items": one()}
        case "anyOf":
            return {"anyOf": [one(), one()]}
    return {"allOf": [one(), rng.choice(({"required": ["a"]}, {"minItems": 1}, {"minProperties": 1}, one()))]}


def document(rng: random.Random) -> dict[str, Any]:
    return {"$ref": "#/$defs/p", "$defs": {name: definition(rng) for name in "pqr"}}


def schemas_in(value: Any, where: str = "#") -> Iterator[str]:
    """References to all that may be a schema in a document."""
    if isinstance(value, dict | bool):
        yield where
    for key, each in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        if key not in ("required", "type", "const", "$ref"):
            yield from schemas_in(each, f"{where}/{str(key).replace('^', '%5E')}")


def valid_references(schema: dict[str, Any], max_depth: int = 6) -> set[str]:
    """The references that a value of at most `max_depth` follows, of those to schemas in a document. Of values that
    follow the same schemas, one is kept to make others of."""
    wheres = [where for where in schemas_in(schema) if not where.endswith(("properties", "Properties", "Items", "Of"))]
    judges = [
        (where, jsonschema_rs.validator_for({"$ref": where, "$defs": schema["$defs"]}))
        for where in wheres
        if where.startswith("#/$defs/")
    ]
    kept: dict[tuple[Any, ...], Any] = {}
    made: list[Any] = [None, True, 1, 7, {}, []]
    for _ in range(max_depth):
        for value in made:
            profile = (type(value), *(where for where, judge in judges if judge.is_valid(value)))
            kept.setdefault(profile, value)
        values = [*kept.values()]
        made = [[*some] for count in (1, 2) for some in itertools.product(values, repeat=count)]
        for names in itertools.chain.from_iterable(itertools.combinations((*NAMES, "z"), count) for count in (1, 2, 3)):
            if len(values) ** len(names) <= 2000:
                made += (dict(zip(names, some, strict=True)) for some in itertools.product(values, repeat=len(names)))
    return {where for profile in kept for where in profile[1:]}


COSTS: Final = {
    **dict.fromkeys("]}", 0),
    **dict.fromkeys('":nultrue1', 1),
    ",": 3,
    **dict.fromkeys("[{", 4),
}  # of a byte


def may_follow(matching: Matching, answer: bytes) -> Sequence[int]:
    """The bytes that may follow, without most of a text or a number."""
    bits = np.unpackbits(matching.mask().view(np.uint8), bitorder="little")[:END]
    assert not matching.fault, (answer, matching.fault)
    wanted = 'ab"' if answer.count(b'"') % 2 else COSTS
    return [int(each) for each in np.flatnonzero(bits) if chr(each) in wanted]


def begun(grammar: CompiledGrammar, rng: random.Random) -> bytes:
    """A random beginning of an answer: deep rather than wide."""
    matching, answer = grammar.begin((END,)), b""
    for _ in range(rng.randint(0, 25)):
        tokens = may_follow(matching, answer)
        if not tokens:
            return answer
        token = rng.choice([each for each in tokens if chr(each) in "{[:"] or tokens)
        matching.read([token])
        answer += bytes([token])
    return answer


def end_of(grammar: CompiledGrammar, begin: bytes, rng: random.Random) -> bytes | None:
    """A whole answer that begins so, of at most 300 bytes more; None if none is found. Brackets are closed if they can
    be, and names and values are the shortest, but for some steps."""
    for _ in range(300):
        matching, answer = grammar.begin((END,)), begin
        matching.read([*begin])
        while not matching.matcher.is_accepting() and len(answer) < len(begin) + 300:
            tokens = may_follow(matching, answer)
            cheapest = min(map(cost, tokens))
            token = rng.choice(tokens if rng.random() < 0.2 else [each for each in tokens if cost(each) == cheapest])
            matching.read([token])
            answer += bytes([token])
        if matching.matcher.is_accepting():
            return answer
    return None


def cost(token: int) -> int:
    return COSTS.get(chr(token), 2)


@pytest.mark.parametrize("seed", range(6))
def test_random_schemas_are_refused_if_their_values_never_end(seed: int) -> None:
    rng = random.Random(seed)
    num_refused = num_followed = 0
    for _ in range(40):
        schema = document(rng)
        found = of_schema(schema, compact=True)
        if isinstance(found, str):
            num_followed += 1
            grammar = compile_grammar(found, VOCABULARY)
            for begin in (b"", begun(grammar, rng), begun(grammar, rng)):
                answer = end_of(grammar, begin, rng)
                assert answer is not None, (json.dumps(schema), begin)
                jsonschema_rs.validate(schema, json.loads(answer))
        elif "leads to itself in each value" in found.message and "beside it" not in found.message:
            num_refused += 1
            assert found.message.split("'")[1] not in valid_references(schema), (schema, found.message)
    assert num_refused > 5 and num_followed > 5
