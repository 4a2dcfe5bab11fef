"""Makes exclusive bounds in a JSON schema exact, for a grammar.

llguidance allows 1 where 1 is the exclusive bound and the other bound is a fraction that begins alike, such as 1.5. In
its place stands the double behind 1, which is no whole number.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

BEHIND_ZERO: Final = 1e-9  # the double behind 0 has 324 digits
_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")


def fractions_in(schema: Mapping[str, Any]) -> Iterator[float]:
    """The bounds of one schema that are no whole numbers."""
    for keyword in (*_LOWER, *_UPPER):
        value = schema.get(keyword)
        if isinstance(value, float) and not value.is_integer():
            yield value


def exact_bounds(fractions: frozenset[float]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Changes a schema of a document. `fractions`: all bounds of the document that are no whole numbers, since a
    reference or `allOf` may bring any of them together with its own."""

    def changed(schema: dict[str, Any]) -> dict[str, Any]:
        found = dict(schema)
        for (inclusive, exclusive), away in ((_LOWER, 1), (_UPPER, -1)):
            # In draft 4 the exclusive keyword is true, and the bound stands beside it.
            keyword = inclusive if schema.get(exclusive) is True else exclusive
            bound = schema.get(keyword)
            if isinstance(bound, int | float) and not isinstance(bound, bool) and _is_near(bound, away, fractions):
                found[keyword] = math.nextafter(bound, away * math.inf) if bound else away * BEHIND_ZERO
        return found

    return changed


def _is_near(bound: float, away: int, fractions: frozenset[float]) -> bool:
    """Whether a fraction begins with the whole number `bound`, on the side that the bound allows."""
    return bound * away >= 0 and any(0 < (each - bound) * away < 1 for each in fractions)
