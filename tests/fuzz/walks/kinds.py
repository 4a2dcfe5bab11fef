"""Random JSON schemas of one kind: names that several parts of a schema rule, or numbers that doubles barely hold.

names      properties, patterns and other names in parts that `allOf`, unions and chains of references join
numbers    bounds, values and multiples with large exponents and many digits, in the spellings of all drafts
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tests.fuzz.served.schemas import DRAFTS, of_draft, schema

NAMES: Final = ("a", "b", "ab", "", "é", "0", 'q"')
PATTERNS: Final = (
    *("", "^", ".", "^a", "b$", "^a$", "^b$", "^(a|b)$", "^[ab]{1,2}$", "^$", "^(é|0)$", '^q"$', "^[^a]", "^([^a]|$)"),
    *(r"^[\s\S]", r"[\s\S]*", "^a|^b", "^a$|^b$", "^a+$", "^(|a|b|ab)$", "^x1$", "[0-9]", "a|^[^a]*$", r"^[^\s\S]$"),
)
APART: Final = (  # lists of patterns of which no two match one name
    *(("^a", "^[^a]", "^$"), ("^a", "^([^a]|$)"), ("^$", "^(a|b)$", "^[^ab]"), ("^a$", "^b$", "^(é|0)$", "^$")),
    *(("",), (".",), (r"^[\s\S]", "^$"), ("^a$", "^b$", "^[^ab]", "^(a|b)[^$]"), ("^[ab]{1,2}$", "^[^ab]")),
)
VALUES: Final[tuple[Any, ...]] = (
    *(True, {}, False, {"type": "integer"}, {"type": "string", "maxLength": 2}, {"type": "null"}, {"enum": [1, "a"]}),
    *({"type": "integer", "maximum": 0.5, "minimum": -2.5}, {"type": "integer", "minimum": 0.1, "maximum": 3}),
    *({"type": "number", "exclusiveMinimum": 3, "maximum": 4}, {"type": "number", "maximum": 3}, {"const": "a"}),
    *({"type": "object", "additionalProperties": False}, {"type": "array", "maxItems": 1}, {"enum": [True, 2]}),
)
EXTREMES: Final = (
    *(1e-300, 1e300, 5e-324, 1e-20, 1e-23, 4.9e-35, 1e-60, 1e-61, 2.5e-59, 1.7976931348623157e308, 1e22, 1e15, 1e16),
    *(2.2250738585072014e-308, 0.1 + 0.2, 1 / 3, 9007199254740991.0, 2**53, 2**53 + 1, 1e-15, 1e-16, 0.0, 0, 1, 0.5),
)


@dataclass(frozen=True)
class _Names:
    """The patterns of parts, and the names of definitions for their references."""

    patterns: Sequence[str]
    defs: Sequence[str]


def _names(rng: Random, depth: int, given: _Names) -> Any:
    """A part that rules names."""
    defs = given.defs
    if defs and rng.random() < 0.3:
        return {"$ref": f"#/$defs/{rng.choice(defs)}"}
    found: dict[str, Any] = {"type": "object"} if rng.random() < 0.8 else {}
    if rng.random() < 0.7:
        found["properties"] = {name: _value(rng, depth, given) for name in rng.sample(NAMES, rng.randint(0, 4))}
    if rng.random() < 0.7:
        found["patternProperties"] = {
            each: _value(rng, depth, given)
            for each in rng.sample(given.patterns, min(len(given.patterns), rng.choice((1, 1, 1, 2))))
        }
    if rng.random() < 0.5:
        found["additionalProperties"] = _value(rng, depth, given)
    if rng.random() < 0.3:
        found["required"] = rng.sample(NAMES, rng.randint(1, 2))
    for keyword in ("minProperties", "maxProperties"):
        if rng.random() < 0.05:
            found[keyword] = rng.choice((0, 1, 2))
    if depth and rng.random() < 0.5:
        keyword = rng.choice(("allOf", "allOf", "anyOf"))
        found[keyword] = [_names(rng, depth - 1, given) for _ in range(rng.randint(1, 3))]
    return _shuffled(rng, found)


def _value(rng: Random, depth: int, given: _Names) -> Any:
    if depth and rng.random() < 0.2:
        return _names(rng, depth - 1, given)
    if given.defs and rng.random() < 0.1:
        return {"$ref": f"#/$defs/{rng.choice(given.defs)}"}
    return rng.choice(VALUES)


def _shuffled(rng: Random, found: dict[str, Any]) -> dict[str, Any]:
    """The same in another order, which says nothing in JSON."""
    return dict(rng.sample(list(found.items()), len(found))) if rng.random() < 0.5 else found


def names(rng: Random) -> Any:
    """A schema with definitions, each of which names only later ones."""
    defs = [f"d{place}" for place in range(rng.choice((0, 0, 1, 2, 4)))]
    patterns = rng.choice(APART) if rng.random() < 0.8 else PATTERNS
    found = _names(rng, 2, _Names(patterns, defs))
    found = found if isinstance(found, dict) and "$ref" not in found else {"allOf": [found]}
    if defs:
        found["$defs"] = {name: _names(rng, 1, _Names(patterns, defs[place + 1 :])) for place, name in enumerate(defs)}
    return _spelt(rng, found)


def numbers(rng: Random) -> Any:
    """A property, or several that are apart."""
    found = {name: _numbers(rng, 1) for name in rng.sample(NAMES, rng.choice((1, 1, 2)))}
    return _spelt(rng, {"type": "object", "properties": found, "required": [*found], "additionalProperties": False})


def _numbers(rng: Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.3:
        return {"const": _number(rng)}
    if rng.random() < 0.3:
        return {"enum": [_number(rng) for _ in range(rng.randint(1, 3))]}
    found: dict[str, Any] = {"type": rng.choice(("number", "integer", "number"))}
    for keywords in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if rng.random() < 0.6:
            found[rng.choice(keywords)] = _number(rng)
    if rng.random() < 0.15:
        found["multipleOf"] = abs(_number(rng))
    if depth and rng.random() < 0.2:
        found[rng.choice(("allOf", "anyOf"))] = [_numbers(rng, 0) for _ in range(2)]
    return found


def _number(rng: Random) -> int | float:
    if rng.random() < 0.5:
        return rng.choice((1, 1, -1)) * rng.choice(EXTREMES)
    num_digits = rng.randint(1, 17)
    exponent = rng.choice((-num_digits, rng.randint(-70, 0), rng.randint(-330, 20)))
    return rng.choice((1, -1)) * float(f"{rng.randrange(10 ** (num_digits - 1), 10**num_digits)}e{exponent}")


def _spelt(rng: Random, found: dict[str, Any]) -> dict[str, Any]:
    return found if rng.random() < 0.7 else of_draft(found, rng.choice(list(DRAFTS)))


KINDS: Final[dict[str, Callable[[Random], Any]]] = {"any": schema, "names": names, "numbers": numbers}
