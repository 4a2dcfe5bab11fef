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


def with_exact_format(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose own `format` allows dates and times that exist. The schemas in it are the caller's."""
    patterns, others = _patterns(schema), schema.get("allOf", [])
    if not patterns or not isinstance(others, list):
        return schema
    return {**schema, "allOf": [*others, *({"pattern": pattern} for pattern in patterns)]}


def _patterns(schema: Mapping[str, Any]) -> list[str]:
    """What the strings of this schema have to match besides."""
    name = schema.get("format")
    if not isinstance(name, str) or name not in EXACT:
        return []
    return [EXACT[name], _EXACT_TIME_OF_DAY] if name == "date-time" else [EXACT[name]]
