"""Makes exclusive bounds in a JSON schema exact, for a grammar, and refuses bounds that are not followed exactly.

llguidance allows 1 where the whole number 1 is the exclusive bound and the other bound is a fraction that begins alike,
such as 1.5. In its place stands a number next to it, which is no whole one: 1.000000001. Fractions of more digits than
MAX_DIGITS lose their last ones there.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from gateway.generation.grammars.multiples import is_number

MAX_DIGITS: Final = 15
MAX_PLACES: Final = 60  # of a bound behind the point: llguidance puts a pair of brackets or two around each digit
PLACES: Final = 9  # behind the point, of a number next to a bound, or more if another bound is as near
_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")


def fractions_in(schema: Mapping[str, Any]) -> Iterator[float]:
    """The bounds of one schema that are no whole numbers. ValueError for one of too many digits, or too near to 0."""
    for keyword in (*_LOWER, *_UPPER):
        value = schema.get(keyword)
        if isinstance(value, float) and not value.is_integer():
            _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
            if len(digits) > MAX_DIGITS:
                raise ValueError(f"{keyword}: got {value}, expected at most {MAX_DIGITS} digits")
            if -int(exponent) > MAX_PLACES:
                raise ValueError(f"{keyword}: got {value}, expected at most {MAX_PLACES} digits behind the point")
            yield value


def with_numeric_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """The same without draft 4's flags: an exclusive bound is a number of its own, as in later drafts."""
    bounded = dict(schema)
    for inclusive, exclusive in (_LOWER, _UPPER):
        if isinstance(flag := schema.get(exclusive), bool):
            del bounded[exclusive]
            if flag and inclusive in bounded:
                bounded[exclusive] = bounded.pop(inclusive)
    return bounded


def exact_bounds(fractions: frozenset[float]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Changes a schema of a document. `fractions`: all bounds of the document that are no whole numbers, since a
    reference or `allOf` may bring any of them together with its own."""
    ordered = sorted(fractions)

    def changed(schema: dict[str, Any]) -> dict[str, Any]:
        exact = dict(schema)
        for (_, keyword), away in ((_LOWER, 1), (_UPPER, -1)):
            bound = schema.get(keyword)
            if is_number(bound) and bound == int(bound) and (gap := _gap(bound, away, ordered)):
                exact[keyword] = _next_to(keyword, bound, away, gap)
        return exact

    return changed


def _gap(bound: float, away: int, ordered: Sequence[float]) -> float:
    """How far the next of the `ordered` fractions is from `bound`, on the side that it allows, if that is away from 0;
    0 for 1 or more."""
    if bound * away < 0:
        return 0.0
    index = bisect_right(ordered, bound) if away > 0 else bisect_left(ordered, bound) - 1
    gap = (ordered[index] - bound) * away if 0 <= index < len(ordered) else 1.0
    return gap if gap < 1 else 0.0


def _next_to(keyword: str, bound: float, away: int, gap: float) -> float:
    """A number of at most MAX_DIGITS digits on that side of a bound, nearer than `gap`. ValueError if there is none."""
    most = MAX_DIGITS - len(str(abs(int(bound))))
    for places in range(min(PLACES, most), most + 1):
        if 2 * 10.0**-places <= gap:
            return round(bound + away * 10.0**-places, places)
    raise ValueError(
        f"{keyword}: got {bound} beside the bound {bound + away * gap}, expected none so near to each other"
    )
