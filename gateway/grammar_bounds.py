"""Makes exclusive bounds in a JSON schema exact, for a grammar, and refuses bounds that are not followed exactly.

llguidance allows 1 where 1 is the exclusive bound and the other bound is a fraction that begins alike, such as 1.5. In
its place stands a number next to it, which is no whole one: 1.000000001. Fractions of more digits than MAX_DIGITS lose
their last ones there.
"""

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

MAX_DIGITS: Final = 15
MOST_PLACES: Final = 9  # behind the point, of a number next to a bound
_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")


def fractions_in(schema: Mapping[str, Any]) -> Iterator[float]:
    """The bounds of one schema that are no whole numbers. ValueError for one of too many digits."""
    for keyword in (*_LOWER, *_UPPER):
        value = schema.get(keyword)
        if isinstance(value, float) and not value.is_integer():
            if len(Decimal(repr(value)).normalize().as_tuple().digits) > MAX_DIGITS:
                raise ValueError(f"{keyword}: got {value}, expected at most {MAX_DIGITS} digits")
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
                found[keyword] = _next_to(bound, away)
        return found

    return changed


def _is_near(bound: float, away: int, fractions: frozenset[float]) -> bool:
    """Whether a fraction begins with the whole number `bound`, on the side that the bound allows."""
    return bound * away >= 0 and any(0 < (each - bound) * away < 1 for each in fractions)


def _next_to(bound: float, away: int) -> float:
    """A number of at most MAX_DIGITS digits on that side of a whole number."""
    places = min(MOST_PLACES, MAX_DIGITS - len(str(abs(int(bound)))))
    return round(bound + away * 10.0**-places, places)
