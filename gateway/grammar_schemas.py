"""A JSON schema in the form that llguidance follows to the letter. What it would take for less than it says is refused.

llguidance refuses keywords that it cannot follow, but for those below. Each text has one spelling in an answer: with
`\\u0061` for `a`, a model could write a name past the schema of that name.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.grammar_bounds import exact_bounds, fractions_in, with_numeric_bounds
from gateway.grammar_formats import with_exact_format
from gateway.grammar_multiples import check_counted, with_exact_multiples
from gateway.grammar_names import names_nothing, with_own_names
from gateway.grammar_patterns import spelt_pattern
from gateway.grammar_references import MAPS, VALUES, check_references, ignores_siblings, without_siblings
from gateway.grammar_together import check_together

# Between the parts of JSON: a space or two, or a line break and an indent. Without a bound a model may never go on.
WHITESPACE: Final = r"(\n[ ]{0,24}|[ ]{0,2})"
ESCAPES: Final = 'nrbtf\\"'
OPTIONS: Final = "x-guidance"  # llguidance reads its own options from this key; "lenient" makes it ignore keywords
_UNSPELT: Final = re.compile(
    r"(?<!\\)(?:\\\\)*(\\u00(?:[01][0-9a-f]|7f))"
)  # a control character without a short escape

MAX_NUMBER: Final = 2**53  # each whole number up to it is a double of its own
_UNUSED: Final = frozenset(("default", "examples"))  # keywords of values that change no answer
_IGNORED: Final = ("divisibleBy", "disallow", "extends")  # of draft 3


def strict_schema(schema: Any, *, compact: bool = False) -> dict[str, Any]:
    """The schema for llguidance, without white space if `compact`. ValueError says what of it cannot be followed."""
    if not isinstance(schema, dict | bool):
        raise ValueError("expected a JSON schema, which is an object")
    if schema is False:
        raise ValueError("got the schema false, which no value follows")
    if schema is True:
        schema = {}
    if OPTIONS in schema:
        raise ValueError(f"got {OPTIONS!r}, expected a schema without llguidance's own options")
    if found := _UNSPELT.search(json.dumps(schema)):
        raise ValueError(f"got the control character {found[1]}, which answers are never made of")

    if ignores_siblings(schema):
        draft = schema["$schema"]
        schema = {**mapped(schema, without_siblings), "$schema": draft}
    check_references(schema)
    used = mapped(schema, _without_unused)
    _check_numbers(used)
    multiples = _multiples(used)
    for each in multiples:
        check_counted(each)
    strict = mapped(used, _strict)
    if multiples:
        check_together(strict)
    exact = mapped(strict, exact_bounds(_fractions(strict)))
    spaces = {"whitespace_flexible": False} if compact else {"whitespace_pattern": WHITESPACE}
    return {**exact, OPTIONS: {**spaces, "json_allowed_escapes": ESCAPES}}


def _fractions(schema: Any) -> frozenset[float]:
    """The bounds in a schema that are no whole numbers."""
    found: list[float] = []

    def seen(each: dict[str, Any]) -> dict[str, Any]:
        found.extend(fractions_in(each))
        return each

    mapped(schema, seen)
    return frozenset(found)


def _multiples(schema: Any) -> list[dict[str, Any]]:
    """The schemas in one that have a `multipleOf`."""
    found: list[dict[str, Any]] = []

    def seen(each: dict[str, Any]) -> dict[str, Any]:
        found.extend([each] if "multipleOf" in each else [])
        return each

    mapped(schema, seen)
    return found


def _check_numbers(schema: Any) -> None:
    """ValueError for a number that is not followed exactly, because llguidance counts in doubles."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, int | float) and not -MAX_NUMBER <= value <= MAX_NUMBER:
            raise ValueError(f"got the number {str(value)[:40]}, expected none beyond {MAX_NUMBER}")


def mapped(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A copy of a schema in which `change` has been made of each schema, the inner ones first. Values in it, such as
    those of `enum`, stay as they are."""
    if not isinstance(schema, dict):
        return schema
    return change({key: _inner(key, value, change) for key, value in schema.items()})


def _inner(key: str, value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The value of a keyword, with the schemas in it changed."""
    if key in VALUES:
        return value
    if isinstance(value, list):
        return [mapped(each, change) for each in value]
    if key in MAPS and isinstance(value, Mapping):
        return {name: mapped(each, change) for name, each in value.items()}
    return mapped(value, change)


def _without_unused(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in _UNUSED}


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    for keyword in _IGNORED:
        if keyword in schema:
            raise ValueError(f"got the keyword {keyword!r} of JSON Schema's draft 3, which is not supported")
    if schema.get("uniqueItems") is False:  # as if it was not there; llguidance knows neither value
        schema = {key: value for key, value in schema.items() if key != "uniqueItems"}
    schema = _with_spelt_patterns(schema)
    _check_least(schema)
    return with_own_names(with_exact_format(with_exact_multiples(with_numeric_bounds(schema))))


def _with_spelt_patterns(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(pattern := schema.get("pattern"), str):
        schema = {**schema, "pattern": spelt_pattern(pattern)}
    if isinstance(named := schema.get("patternProperties"), dict):
        schema = {**schema, "patternProperties": {spelt_pattern(name): each for name, each in named.items()}}
        schema["patternProperties"] = {
            name: each for name, each in schema["patternProperties"].items() if not names_nothing(name)
        }
    return schema


def _check_least(schema: Mapping[str, Any]) -> None:
    """Names besides those of `properties` may be written twice, and then count once. One of them is certain to be
    another than those of `required`."""
    least, required = schema.get("minProperties"), schema.get("required", ())
    if not isinstance(least, int) or not isinstance(required, list | tuple):
        return
    most = len({name for name in required if isinstance(name, str)}) + 1
    if least > most:
        raise ValueError(f"minProperties: got {least}, expected at most {most}: names of `required`, and one")
