"""Makes the formats of dates and times in a JSON schema exact, for a grammar.

llguidance allows the 29th of February in every year, the year 0000, and second 60 in every minute. RFC 3339 allows
second 60 only at a leap second, and most readers of dates take none of the three. A pattern beside the format forbids
them.
"""

from collections.abc import Mapping
from typing import Any, Final

_CENTURIES: Final = (
    "([02468][48]|[13579][26]|[2468]0)00"  # in which the last year of a century is a leap year; not 0000
)
_LEAP_YEAR: Final = f"([0-9]{{2}}(0[48]|[2468][048]|[13579][26])|{_CENTURIES})"
_YEAR: Final = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAY: Final = f"({_YEAR}-(0[13-9]|1[0-2]|02-([01]|2[0-8])).*|{_LEAP_YEAR}-02-29.*)"
_SECOND: Final = "[0-9]{2}:[0-9]{2}:[0-5].*"
EXACT: Final = {
    "date": f"^{_DAY}$",
    "time": f"^{_SECOND}$",
    "date-time": f"^{_DAY}$",
}
_EXACT_TIME_OF_DAY: Final = f"^.{{11}}{_SECOND}$"

# Keywords of JSON Schema (draft 2020-12, and the older `definitions` and `dependencies`) that hold schemas.
_ONE: Final = frozenset(
    "items additionalItems additionalProperties unevaluatedItems unevaluatedProperties contains propertyNames".split()
    + "not if then else contentSchema".split()
)
_LIST: Final = frozenset("allOf anyOf oneOf prefixItems items".split())
_MAP: Final = frozenset("properties patternProperties $defs definitions dependentSchemas dependencies".split())


def with_exact_formats(schema: Any) -> Any:
    """A copy of a schema in which each date and time is one that exists. Values in it, such as those of `enum`, stay as
    they are."""
    if not isinstance(schema, dict):
        return schema
    found = {key: _inner(key, value) for key, value in schema.items()}

    patterns = _patterns(schema)
    others = found.get("allOf", [])
    if patterns and isinstance(others, list):
        found["allOf"] = [*others, *({"pattern": pattern} for pattern in patterns)]
    return found


def _inner(key: str, value: Any) -> Any:
    """The value of a keyword, with the schemas in it made exact."""
    if key in _LIST and isinstance(value, list):
        return [with_exact_formats(each) for each in value]
    if key in _MAP and isinstance(value, Mapping):
        return {name: with_exact_formats(each) for name, each in value.items()}
    return with_exact_formats(value) if key in _ONE else value


def _patterns(schema: Mapping[str, Any]) -> list[str]:
    """What the strings of this schema have to match besides."""
    name = schema.get("format")
    if not isinstance(name, str) or name not in EXACT:
        return []
    return [EXACT[name], _EXACT_TIME_OF_DAY] if name == "date-time" else [EXACT[name]]
