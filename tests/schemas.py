"""Random JSON schemas that grammars can follow, and whether a text follows one."""

import json
import random
import re
from datetime import date
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

FORMATS = FormatChecker()
WORDS = ("name", "age", "tags", "ok", "price", "note", "size", "id")


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """An object whose values are bounded, so that a model ends it soon."""
    names = rng.sample(WORDS, rng.randint(1, 3))
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.8],
    }
    if rng.random() < 0.9:
        found["additionalProperties"] = False
    return found


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format", "anyOf", "ref"]
    kind = rng.choice([*kinds, "object", "array", "array"] if depth else kinds)
    match kind:
        case "string":
            least = rng.randint(0, 2)
            return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 8)}
        case "integer":
            least = rng.randint(-50, 50)
            return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 500)}
        case "number":
            return {"type": "number", "minimum": 0, "exclusiveMaximum": rng.randint(1, 99)}
        case "enum":
            return {"enum": rng.sample(["red", "green", 7, None, True, "a b", "\u00fc", '"q"'], rng.randint(1, 4))}
        case "const":
            return {"const": rng.choice(["x", 3, False, None])}
        case "pattern":
            return {"type": "string", "pattern": rng.choice(["^[a-z]{2,5}$", "^[0-9]{4}-[0-9]{2}$", "^(ab|cd)+x$"])}
        case "format":
            return {"type": "string", "format": rng.choice(["date", "time", "date-time", "uuid", "ipv4"])}
        case "anyOf":
            return {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"enum": ["none", "many"]}]}
        case "object":
            return random_schema(rng, depth)
        case "array":
            least = rng.randint(0, 2)
            items = _value(rng, depth - 1)
            return {"type": "array", "items": items, "minItems": least, "maxItems": least + rng.randint(0, 2)}
        case "ref":
            return {"$ref": "#/$defs/small"}
    return {"type": kind}


def with_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """The same with what its references name."""
    return {**schema, "$defs": {"small": {"type": "integer", "minimum": 1, "maximum": 5}}}


def follows(text: str, schema: dict[str, Any]) -> bool:
    """Whether a text is JSON of this schema. ValidationError or ValueError says why not."""
    Draft202012Validator(schema, format_checker=FORMATS).validate(json.loads(text))
    return True


# jsonschema checks times and moments with other packages only. Python takes no more than six digits of a fraction.
TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII)


def _is_date(value: object) -> bool:
    return not isinstance(value, str) or (len(value) == 10 and bool(date.fromisoformat(value)))


def _is_time(value: object) -> bool:
    return not isinstance(value, str) or TIME.fullmatch(value) is not None


def _is_moment(value: object) -> bool:
    return not isinstance(value, str) or (_is_date(value[:10]) and value[10:11] in "Tt" and _is_time(value[11:]))


FORMATS.checks("date", raises=ValueError)(_is_date)
FORMATS.checks("time")(_is_time)
FORMATS.checks("date-time", raises=ValueError)(_is_moment)
