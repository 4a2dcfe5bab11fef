"""Values that may be valid in a schema: made of its own constants, numbers beside its bounds, names and lengths."""

import json
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any, Final

from gateway.generation.grammars.references import named
from tests.fuzz.served.schemas import SMALL, VALUES

NUM_CANDIDATES: Final = 20
MAX_DEPTH: Final = 8
NUMERIC: Final = "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split()
UNIONS: Final = "anyOf oneOf allOf".split()
MAX_LENGTH: Final = 40  # of texts and lists


def candidates(schema: Any, root: Any, rng: Random) -> Iterator[str]:
    """Texts of JSON. References in `schema` lead into `root`."""
    numbers = list(_numbers(schema))
    for _ in range(NUM_CANDIDATES):
        yield json.dumps(_value(schema, root, numbers, rng, 0))


def _numbers(schema: Any) -> Iterator[int | float]:
    """Numbers in a schema, and beside them."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from (value, value + 1, value - 1, value + 0.25, value - 0.25, 2 * value, -value)


def _value(schema: Any, root: Any, numbers: list[int | float], rng: Random, depth: int) -> Any:
    """A value for one schema, as far as its own keywords tell."""
    any_value = rng.choice((*VALUES, *SMALL, *islice(numbers, 40)))
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return any_value
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    others = [part for keyword in UNIONS for part in schema.get(keyword, ()) if isinstance(part, dict)]
    if isinstance(schema.get("$ref"), str):
        others.append(named(schema["$ref"], root) or {})
    if others and rng.random() < 0.7:
        return _merged([_value(each, root, numbers, rng, depth + 1) for each in others], rng)

    kinds = schema.get("type") or ["object", "array", "number", "string"]
    match rng.choice(kinds if isinstance(kinds, list) else [kinds]):
        case "object":
            return _object(schema, root, numbers, rng, depth)
        case "array":
            own_items = schema.get("items")
            firsts: list[Any] = own_items if isinstance(own_items, list) else schema.get("prefixItems", [])
            count = max(0, min(MAX_LENGTH, rng.choice((0, len(firsts), schema.get("minItems", 0)))))
            rest = own_items if isinstance(own_items, dict) else schema.get("additionalItems")
            own = [*firsts, *[rest] * count][:count]
            return [_value(each, root, numbers, rng, depth + 1) for each in own]
        case "string":
            length = rng.choice((0, 1, schema.get("minLength", 0), schema.get("maxLength", 1)))
            return rng.choice(("a", "0", "é", "x1 ")) * max(0, min(MAX_LENGTH, length))
        case "number" | "integer":
            steps = [schema["multipleOf"] * number for number in range(-3, 4)] if _has_step(schema) else []
            return rng.choice(
                [*(schema[each] for each in NUMERIC if _is_number(schema.get(each))), *numbers, *steps, 0]
            )
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
    return any_value


def _object(schema: Any, root: Any, numbers: list[int | float], rng: Random, depth: int) -> Any:
    properties = schema.get("properties", {})
    names = {*schema.get("required", ()), *(name for name in properties if rng.random() < 0.2)}
    others = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    return {
        name: _value(properties[name] if name in properties else rng.choice(others), root, numbers, rng, depth + 1)
        for name in sorted(names)
    }


def _merged(values: list[Any], rng: Random) -> Any:
    """One of the values, or an object with the names of several."""
    objects = [each for each in values if isinstance(each, dict) and rng.random() < 0.7]
    return {name: each for one in objects for name, each in one.items()} if objects else rng.choice(values)


def _has_step(schema: Any) -> bool:
    return _is_number(schema.get("multipleOf"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
