"""Changes a value of JSON: parts are deleted, moved, repeated, nested, or become extreme."""

import json
from contextlib import suppress
from random import Random
from typing import Any, Final

from tests.fuzz.served.schemas import NAMES, NUMBERS, REFUSED, VALUES

MAX_CHARS: Final = 48_000  # of a changed value as JSON
COUNTS: Final = (0, 1, 2, 63, 64, 255, 1000, 4096, 65_535, 10**6, 2**31, 2**53, 2**64)
MAX_NESTED: Final = 150


def changed(rng: Random, value: Any, others: list[Any]) -> Any:
    """A changed copy, of at most MAX_CHARS characters. `others`: values whose parts may come into it."""
    found = copied(value)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        with suppress(RecursionError):  # Python's own JSON goes no deeper
            after = _step(rng, found, others)
            if len(json.dumps(after)) <= MAX_CHARS:
                found = after
    return found


def copied(value: Any) -> Any:
    """A copy of a value of JSON."""
    return json.loads(json.dumps(value))


def _step(rng: Random, value: Any, others: list[Any]) -> Any:
    found = copied(value)
    places = _places(found)
    if not places:
        return copied(rng.choice(others))
    holder, key = rng.choice(places)
    part = holder[key]
    match rng.randrange(8):
        case 0:
            del holder[key]
        case 1:
            holder[key] = _extreme(rng, part)
        case 2:
            other, place = rng.choice(places)
            other[place] = copied(part)
        case 3:
            holder[key] = _part_of(rng, rng.choice(others))
        case 4:
            _repeat(rng, holder, key)
        case 5:
            holder[key] = _nested(rng, part)
        case 6 if isinstance(holder, dict):
            holder[rng.choice((*NAMES, *_KEYWORDS))] = holder.pop(key)
        case _:
            if isinstance(part, dict):
                part |= copied(rng.choice((*REFUSED, {"type": "object"}, {rng.choice(_KEYWORDS): 1})))
            else:
                holder[key] = rng.choice(VALUES)
    return found


_KEYWORDS: Final = (
    *("type", "properties", "required", "items", "prefixItems", "anyOf", "oneOf", "allOf", "$ref", "const", "enum"),
    *("minimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "format", "minItems"),
    *("additionalProperties", "patternProperties", "minProperties", "maxProperties", "$defs", "$schema", "$id"),
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(holder, key) of each part."""
    found, left = [], [value]
    while left:
        holder = left.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        found += [(holder, key) for key in keys]
        left += [holder[key] for key in keys]
    return found


def _part_of(rng: Random, value: Any) -> Any:
    places = _places(value)
    if not places:
        return value
    holder, key = rng.choice(places)
    return copied(holder[key])


def _extreme(rng: Random, value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return rng.choice((True, False, None, "", 0))
    if isinstance(value, int | float):
        return rng.choice((*COUNTS, *NUMBERS, -value, value + 1))
    if isinstance(value, str):
        size = rng.choice((2, 17, 300, 4000))
        return rng.choice((value * (1 + size // (1 + len(value))), value[::-1], "", value + "\\", rng.choice(NAMES)))
    return [] if isinstance(value, list) else {}


def _repeat(rng: Random, holder: Any, key: Any) -> None:
    """The same part many times beside itself."""
    number = rng.choice((2, 10, 100, 1000))
    if isinstance(holder, list):
        holder[key:key] = [copied(holder[key]) for _ in range(number)]
    else:
        for place in range(number):
            holder[f"{key}{place}"] = copied(holder[key])


def _nested(rng: Random, part: Any) -> Any:
    """The part within many others."""
    shape = rng.randrange(5)
    for _ in range(rng.choice((1, 2, 10, 60, MAX_NESTED))):
        part = (
            {"type": "object", "properties": {"a": part}, "required": ["a"]},
            {"allOf": [part]},
            {"anyOf": [part, {"type": "null"}]},
            {"type": "array", "items": part},
            [part],
        )[shape]
    return part
