"""A JSON schema in the form that llguidance follows to the letter. What it would take for less than it says is refused.

llguidance refuses keywords that it cannot follow, but for those below. Each text has one spelling in an answer: with
`\\u0061` for `a`, a model could write a name past the schema of that name.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from gateway.generation.grammars.bounds import exact_bounds, fractions_in, with_numeric_bounds
from gateway.generation.grammars.endings import check_endings
from gateway.generation.grammars.formats import with_exact_format
from gateway.generation.grammars.multiples import check_counted, with_exact_multiples
from gateway.generation.grammars.names import names_of
from gateway.generation.grammars.numbers import check_numbers
from gateway.generation.grammars.patterns import ESCAPES, OPTIONS, spelt_pattern
from gateway.generation.grammars.references import check_references, ignores_siblings, mapped, without_siblings
from gateway.generation.grammars.together import check_together

# Between the parts of JSON: a space or two, or a line break and an indent. Without a bound a model may never go on.
WHITESPACE: Final = r"(\n[ ]{0,24}|[ ]{0,2})"
_UNSPELT: Final = re.compile(
    r"(?<!\\)(?:\\\\)*(\\u00(?:[01][0-9a-f]|7f))"
)  # a control character without a short escape

_UNUSED: Final = frozenset(("default", "examples"))  # keywords of values that change no answer
_GROUPS: Final[tuple[tuple[str, ...], ...]] = (
    ("properties", "patternProperties", "additionalProperties"),
    ("items", "prefixItems", "additionalItems"),
)
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
    if match := _UNSPELT.search(json.dumps(schema)):
        raise ValueError(f"got the control character {match[1]}, which answers are never made of")

    if ignores_siblings(schema):
        draft = schema["$schema"]
        schema = {**mapped(schema, without_siblings), "$schema": draft}
    check_references(schema)
    used = mapped(schema, _without_unused)
    check_numbers(used)
    multiples = _multiples(used)
    for number in multiples:
        check_counted(number)
    names = names_of(used)
    strict = mapped(mapped(used, _strict), lambda part: _grouped(names.with_own(part)))
    names.check_together(strict)
    check_endings(strict, names.matches)
    if multiples:
        check_together(strict)
    exact = mapped(strict, exact_bounds(_fractions(strict)))
    spaces = {"whitespace_flexible": False} if compact else {"whitespace_pattern": WHITESPACE}
    return {**exact, OPTIONS: {**spaces, "json_allowed_escapes": ESCAPES}}


def _fractions(schema: Any) -> frozenset[float]:
    """The bounds in a schema that are no whole numbers."""
    fractions: list[float] = []

    def seen(part: dict[str, Any]) -> dict[str, Any]:
        fractions.extend(fractions_in(part))
        return part

    mapped(schema, seen)
    return frozenset(fractions)


def _multiples(schema: Any) -> list[dict[str, Any]]:
    """The schemas in one that have a `multipleOf`."""
    multiples: list[dict[str, Any]] = []

    def seen(part: dict[str, Any]) -> dict[str, Any]:
        multiples.extend([part] if "multipleOf" in part else [])
        return part

    mapped(schema, seen)
    return multiples


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
    return with_exact_format(with_exact_multiples(with_numeric_bounds(schema)))


def _grouped(schema: dict[str, Any]) -> dict[str, Any]:
    """The same with keywords side by side that say to what others apply. llguidance forgets those that stand on the
    other side of a union, a reference or a value."""
    groups = [[keyword for keyword in group if keyword in schema] for group in _GROUPS]
    firsts = {group[0]: group for group in groups if group}
    others = {keyword for group in groups for keyword in group[1:]}
    keys = (keyword for key in schema if key not in others for keyword in firsts.get(key, [key]))
    return {key: schema[key] for key in keys}


def _with_spelt_patterns(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(pattern := schema.get("pattern"), str):
        schema = {**schema, "pattern": spelt_pattern(pattern)}
    if isinstance(named := schema.get("patternProperties"), dict):
        spelt: dict[str, Any] = {}
        for name, schema_of in named.items():
            other = spelt_pattern(name)
            spelt[other] = {"allOf": [spelt[other], schema_of]} if other in spelt else schema_of
        schema = {**schema, "patternProperties": spelt}
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
