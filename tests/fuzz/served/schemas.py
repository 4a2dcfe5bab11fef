"""Random JSON schemas that favour edges: numbers, exclusive bounds, names by pattern, unions, formats, references."""

from functools import partial
from random import Random
from typing import Any, Final

from gateway.generation.grammars.references import mapped
from tests.fuzz.served.patterns import pattern

NUMBERS: Final = (
    *(0, 1, -1, 2, 7, 10, -10, 0.5, -0.5, 0.1, 1.5, 2.25, 1e-7, 99.99, 100, 255, -128, 1000, 1e3, 1.0, -0.0),
    *(2**31, 2**53 - 1, 2**53, 2**53 + 1, -(2**53), 2**63 - 1, 2**63, -(2**63), 2**64, 10**19, 10**30, 1e300, 1e-300),
)
SMALL: Final = (0, 1, 2, 3, 5, 10, -1, -3, 0.5, -0.5, 0.25, 1.5, -2.5, 0.1)
NAMES: Final = ("a", "b", "name", "ab", "x1", "", "é", "a b", 'q"q', "$ref", "type", "0", "a\\b", "long" * 20)
VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    1.0,
    0.5,
    "",
    "a",
    "é",
    '"',
    "\\",
    "a\nb",
    [],
    {},
    [1, "a"],
    {"a": None},
)
FORMATS: Final = "date time date-time date-time duration email hostname ipv4 ipv6 uri uuid regex unknown".split()
REFUSED: Final[tuple[dict[str, Any], ...]] = (
    *({"not": {"type": "null"}}, {"contains": {"type": "null"}}, {"uniqueItems": True}, {"propertyNames": {}}),
    *({"if": {"type": "null"}, "then": False}, {"dependentRequired": {"a": ["b"]}}, {"unevaluatedProperties": False}),
    *({"$dynamicRef": "#a"}, {"x-guidance": {}}, {"extends": {}}, {"$ref": "http://example.org/s"}, {"type": "x"}),
)
P_REFUSED: Final = 0.004  # of schemas that have one of these
P_BELOW: Final = 0.05  # of greatest lengths below the least ones
P_LARGE: Final = 0.04  # of bounds that lie among NUMBERS
MULTIPLES: Final = (1, 2, 3, 7, 0.5, 0.1, 0.25, 0.01, 10, 1e-9, 5, 100, 2**53, 0.3, 0.7, 1.5, 2.5, 12, 64, 1e6, 0.125)
DRAFTS: Final = {  # that `$schema` may name, with how one writes what the others write in another way
    "http://json-schema.org/draft-04/schema#": "flags",
    "http://json-schema.org/draft-06/schema#": "lists",
    "http://json-schema.org/draft-07/schema#": "lists",
    "https://json-schema.org/draft/2019-09/schema": "lists",
    "https://json-schema.org/draft/2020-12/schema": "",
}


def schema(rng: Random) -> Any:
    """A whole schema with what its references name: definitions that name one another, in chains and in circles."""
    num_defs = rng.choice((0, 0, 1, 2, 3, rng.randint(4, 30)))
    names = [f"d{place}" for place in range(num_defs)]
    found = _schema(rng, 3, names)
    if not isinstance(found, dict):
        return found
    if names:
        key = rng.choice(("$defs", "$defs", "definitions"))
        found = _refer({**found, "$defs": {name: _schema(rng, 2, names) for name in names}}, key)
    return found if rng.random() < 0.8 else of_draft(found, rng.choice(list(DRAFTS)))


def of_draft(found: dict[str, Any], draft: str) -> dict[str, Any]:
    """The same in the spelling of a draft."""
    way = DRAFTS[draft]
    spelt: dict[str, Any] = mapped(found, partial(_spelt, way)) if way else found
    return {"$schema": draft, **spelt}


def _spelt(way: str, found: dict[str, Any]) -> dict[str, Any]:
    """One schema without formats of later drafts, whose first items are a list; in draft 4 exclusive bounds are flags,
    and no `required` is empty."""
    spelt = dict(found)
    if "prefixItems" in spelt:
        rest = {"additionalItems": spelt["items"]} if "items" in spelt else {}
        spelt = {**spelt, "items": spelt["prefixItems"], **rest}
        del spelt["prefixItems"]
    for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if way == "flags" and exclusive in spelt and plain not in spelt:
            spelt |= {plain: spelt[exclusive], exclusive: True}
    if spelt.get("format") in ("duration", "uuid"):
        del spelt["format"]
    if way == "flags" and spelt.get("required") == []:
        del spelt["required"]
    return spelt


def _refer(found: dict[str, Any], key: str) -> dict[str, Any]:
    """The same with its definitions under `key`, in which references name them."""
    if key == "$defs":
        return found
    renamed: dict[str, Any] = _renamed(found, f"#/{key}/")
    return {key if name == "$defs" else name: value for name, value in renamed.items()}


def _renamed(value: Any, place: str) -> Any:
    if isinstance(value, dict):
        return {name: _renamed(each, place) for name, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, place) for each in value]
    return value.replace("#/$defs/", place) if isinstance(value, str) else value


def _schema(rng: Random, depth: int, names: list[str]) -> Any:
    if rng.random() < P_REFUSED:
        return dict(rng.choice(REFUSED))
    simple = (_number, _number, _string, _string, _enum, _enum, _plain, _plain, _numbers, _values_within)
    nested = (*simple, _object, _object, _object, _object, _object, _object, _array, _array, *([_union] * 4))
    if names and rng.random() < 0.25:
        found: Any = {"$ref": f"#/$defs/{rng.choice(names)}"}
        return found if rng.random() < 0.95 else {**found, **_number(rng, depth, names)}
    return rng.choice(simple if depth == 0 else nested)(rng, depth, names)


def _bound(rng: Random) -> int | float:
    return rng.choice(NUMBERS if rng.random() < P_LARGE else SMALL)


def _number(rng: Random, depth: int, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"type": rng.choice(("number", "integer", "number", ["integer", "null"]))}
    low = _bound(rng)
    high = low + abs(_bound(rng)) if rng.random() < 0.8 else _bound(rng)
    if rng.random() < 0.7:
        found[rng.choice(("minimum", "exclusiveMinimum"))] = low
    if rng.random() < 0.7:
        found[rng.choice(("maximum", "exclusiveMaximum"))] = high
    if rng.random() < 0.2:
        found["multipleOf"] = rng.choice(MULTIPLES)
    if rng.random() < 0.1:
        del found["type"]
    return found


def _numbers(rng: Random, depth: int, names: list[str]) -> dict[str, Any]:
    """Several bounds and multiples that hold together, and may leave few numbers, one, or none."""
    parts = [_number(rng, depth, names) for _ in range(rng.randint(1, 3))]
    for each in parts:
        each.pop("type", None)
        if rng.random() < 0.5:
            each["multipleOf"] = rng.choice(MULTIPLES)
    found: dict[str, Any] = {"type": rng.choice(("number", "integer", ["number", "string"]))}
    middle, width = _bound(rng), rng.choice((0, 1e-9, 0.001, 0.1, 0.5, 1, 3, 50))
    found |= {rng.choice(("minimum", "exclusiveMinimum")): middle}
    found |= {rng.choice(("maximum", "exclusiveMaximum")): middle + width}
    match rng.randrange(4):
        case 0:
            return found | {"multipleOf": rng.choice(MULTIPLES)}
        case 1:
            return found | {"anyOf": parts}
        case 2:
            return {"type": found["type"], "allOf": [*parts, *({key: each} for key, each in found.items())]}
    return found | {"allOf": parts}


def _values_within(rng: Random, depth: int, names: list[str]) -> dict[str, Any]:
    """Values beside bounds, of which some, one or none lies within."""
    return _enum(rng, depth, names) | _number(rng, depth, names)


def _pattern(rng: Random, depth: int) -> str:
    """Without a class of no characters, which the validators take for the beginning of a longer one."""
    return pattern(rng, depth).replace("[]", "a")


def _string(rng: Random, depth: int, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    least = rng.choice((0, 0, 1, 2, 5))
    if rng.random() < 0.4:
        found["minLength"] = least
    if rng.random() < 0.6:
        found["maxLength"] = least + rng.choice((0, 1, 5, 30, 200)) - (rng.random() < P_BELOW)
    if rng.random() < 0.4:
        text = _pattern(rng, 2)
        found["pattern"] = rng.choice((f"^{text}$", f"^({text})$", text, f"^{text}", f"{text}$"))
    if rng.random() < 0.3:
        found["format"] = rng.choice(FORMATS)
    return found


def _enum(rng: Random, depth: int, names: list[str]) -> dict[str, Any]:
    if rng.random() < 0.4:
        return {"const": rng.choice((*VALUES, *SMALL, _bound(rng)))}
    values = [rng.choice((*VALUES, *VALUES, *VALUES, *SMALL, _bound(rng))) for _ in range(rng.choice((1, 2, 4, 30)))]
    return {"enum": values} if rng.random() < 0.8 else {"enum": values, "type": rng.choice(("string", "number"))}


def _plain(rng: Random, depth: int, names: list[str]) -> Any:
    kinds = ("string", "integer", "boolean", "null", "object", "array")
    return rng.choice(({}, True, {"type": rng.choice(kinds)}, {"type": rng.sample(kinds, 2)}, False, {"title": "t"}))


def _object(rng: Random, depth: int, names: list[str]) -> dict[str, Any]:
    own = rng.sample(NAMES, rng.choice((0, 1, 1, 2, 3, 6)))
    found: dict[str, Any] = {"type": "object", "properties": {each: _schema(rng, depth - 1, names) for each in own}}
    found["required"] = [each for each in own if rng.random() < 0.6]
    if rng.random() < 0.1:
        found["required"] = sorted({*found["required"], rng.choice(NAMES)})
    if rng.random() < 0.6:
        found["additionalProperties"] = False if rng.random() < 0.6 else _schema(rng, depth - 1, names)
    if rng.random() < 0.25:
        patterns = [
            *(f"^{each}" for each in own),
            f"^({'|'.join(own)})$",
            "^a",
            "b$",
            "",
            "^x[0-9]$",
            ".",
            _pattern(rng, 1),
        ]
        chosen = rng.sample(patterns, min(len(patterns), rng.randint(1, 2)))
        found["patternProperties"] = {each: _schema(rng, depth - 1, names) for each in chosen}
    for keyword in ("minProperties", "maxProperties"):
        if rng.random() < 0.06:
            found[keyword] = rng.choice((0, 1, 1, len(found["required"]), len(found["required"]) + 1, 8))
    return found


def _array(rng: Random, depth: int, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "array"}
    if rng.random() < 0.4:
        found["prefixItems"] = [_schema(rng, depth - 1, names) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.8:
        found["items"] = _schema(rng, depth - 1, names)
    least = rng.choice((0, 0, 1, 2, 3))
    if rng.random() < 0.5:
        found["minItems"] = least
    if rng.random() < 0.7:
        found["maxItems"] = least + rng.choice((0, 1, 3, 3, 50)) - (rng.random() < P_BELOW)
    return found


def _union(rng: Random, depth: int, names: list[str]) -> dict[str, Any]:
    keyword = rng.choice(("anyOf", "anyOf", "oneOf", "allOf", "allOf"))
    parts = [_schema(rng, depth - 1, names) for _ in range(rng.randint(1, 3))]
    if keyword == "allOf" and rng.random() < 0.6:  # parts of one kind, which leave something
        make = rng.choice((_number, _string, _object, _array))
        parts = [make(rng, depth, names) for _ in range(rng.randint(1, 3))]
    beside = _schema(rng, depth - 1, names) if rng.random() < 0.3 else {}
    return {**(beside if isinstance(beside, dict) else {}), keyword: parts}
