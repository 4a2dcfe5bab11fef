"""Which parts of a JSON schema hold together for one value, and whether a number is left where several do.

llguidance merges `allOf`, references and the parts of unions, and then looks whether a multiple lies within the bounds.
It looks in doubles, and does not count integers among multiples of a fraction. Where it would take none for some, an
answer could not go on; where it would take some for none, the refusal would be untrue.
"""

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from gateway.generation.grammars.multiples import (
    MAX_COUNTED,
    check_work,
    common,
    exact,
    is_number,
    places,
    schema_is_integer,
)
from gateway.generation.grammars.references import named

MAX_WAYS: Final = 4096  # in which parts of one schema hold together
MAX_DEPTH: Final = 100  # of references and `allOf` within one another
Parts = tuple[Mapping[str, Any], ...]  # schemas that hold together
_UNIONS: Final = ("anyOf", "oneOf")


def check_together(root: Any) -> None:
    """ValueError for multiples and bounds that hold together and are not followed. References end, in this schema."""
    for parts in ways(root, "multipleOf"):
        if len(parts) > 1:
            _check_numbers(parts)


def ways(root: Any, keyword: str) -> Iterator[Parts]:
    """The ways in which parts of a schema hold together for one value, each once. ValueError for too many, which says
    that they are too many beside `keyword`."""
    try:
        yield from _ways(root)
    except _TooMany as error:
        raise ValueError(f"{error} beside {keyword}") from error


def alternatives(schemas: Sequence[Any], root: Any, keyword: str) -> Sequence[Parts]:
    """The ways in which schemas that hold together do, without those of values within. ValueError for too many."""
    try:
        return _alternatives(schemas, root)
    except _TooMany as error:
        raise ValueError(f"{error} beside {keyword}") from error


class _TooMany(Exception):
    """More of something than is looked at."""


def _ways(root: Any) -> Iterator[Parts]:
    left, seen, num_ways = [(root,)], set[frozenset[int]](), 0
    while left:
        schemas = left.pop()
        if (key := frozenset(map(id, schemas))) in seen:
            continue
        seen.add(key)
        ways = _alternatives(schemas, root)
        num_ways += len(ways)
        _check_count(num_ways)
        for parts in ways:
            yield parts
            left += _inner(parts)


def _check_count(num_ways: int) -> None:
    if num_ways > MAX_WAYS:
        raise _TooMany(f"got more than {MAX_WAYS} ways in which parts hold together,")


def _alternatives(schemas: Sequence[Any], root: Any) -> list[Parts]:
    """The ways in which schemas that hold together do: one of each union, and all else."""
    ways: list[Parts] = [()]
    for schema in schemas:
        ways = _both(ways, _of_one(schema, root))
    return ways


def _of_one(schema: Any, root: Any, depth: int = 0) -> list[Parts]:
    if depth > MAX_DEPTH:
        raise _TooMany(f"got more than {MAX_DEPTH} references within one another")
    if not isinstance(schema, dict):
        return [] if schema is False else [()]
    ways: list[Parts] = [(schema,)]
    needed = [named(schema["$ref"], root)] if isinstance(schema.get("$ref"), str) else []
    parts = schema.get("allOf")
    needed += parts if isinstance(parts, list) else []
    for other in needed:
        ways = _both(ways, _of_one(other, root, depth + 1))
    for keyword in _UNIONS:
        if isinstance(parts := schema.get(keyword), list):
            ways = _both(ways, [one for other in parts for one in _of_one(other, root, depth + 1)])
    return ways


def _both(some: list[Parts], others: list[Parts]) -> list[Parts]:
    _check_count(len(some) * len(others))
    return [(*one, *other) for one in some for other in others]


def _inner(parts: Parts) -> Iterator[tuple[Any, ...]]:
    """The schemas that hold together for each value within a value of these parts."""
    names = {name for part in parts for name in mapping(part, "properties")}
    for name in names:
        yield _present(schema for part in parts for schema in of_name(part, name, _matches))
    patterns = {pattern for part in parts for pattern in mapping(part, "patternProperties")}
    for pattern in patterns:
        yield _present(
            mapping(part, "patternProperties").get(pattern, part.get("additionalProperties")) for part in parts
        )
    yield _present(part.get("additionalProperties") for part in parts)

    firsts = [first_items(part) for part in parts]
    for index in range(max(map(len, firsts), default=0)):
        yield _present(
            first[index] if index < len(first) else items(part) for first, part in zip(firsts, parts, strict=True)
        )
    yield _present(map(items, parts))


def _present(schemas: Any) -> tuple[Any, ...]:
    return tuple(schema for schema in schemas if isinstance(schema, dict))


def mapping(part: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    """The schemas that a keyword of a part has by name."""
    value = part.get(keyword)
    return value if isinstance(value, dict) else {}


def of_name(part: Mapping[str, Any], name: str, matches: Callable[[str, str], bool]) -> list[Any]:
    """The schemas of a property in one part. `matches` says whether a pattern matches a name."""
    own = [mapping(part, "properties")[name]] if name in mapping(part, "properties") else []
    own += [schema for pattern, schema in mapping(part, "patternProperties").items() if matches(pattern, name)]
    return own or [part.get("additionalProperties")]


def _matches(pattern: str, name: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of a class that ECMA reads in one way only
            return re.search(pattern, name) is not None
    except (re.error, OverflowError, RecursionError):
        return False


def first_items(part: Mapping[str, Any]) -> list[Any]:
    """The schemas of the first items, one each."""
    firsts = part["items"] if isinstance(part.get("items"), list) else part.get("prefixItems")
    return firsts if isinstance(firsts, list) else []


def items(part: Mapping[str, Any]) -> Any:
    """The schema of items behind the first ones."""
    return part.get("additionalItems") if isinstance(part.get("items"), list) else part.get("items")


# ---- numbers ----


@dataclass(frozen=True)
class _Range:
    """From `low` to `high`, each with whether it is exclusive."""

    low: tuple[Fraction, bool]
    high: tuple[Fraction, bool]

    def has_written(self, step: Fraction, num_places: int) -> bool:
        """Whether llguidance writes a multiple of `step` within, with `num_places` decimal places or none."""
        first = math.ceil(self.low[0] / step)
        for number in range(first, first + 4):  # at most one is at each end
            value = number * step
            if value > self.high[0]:
                return False
            is_end = any(value == end and is_exclusive for end, is_exclusive in (self.low, self.high))
            if not is_end and _is_written(value, self.high[0] if value > 0 else self.low[0], num_places):
                return True
        return True

    def is_taken_for_some(self, step: float, *, is_integer: bool) -> bool:
        """Whether llguidance finds a multiple within; in doubles, as it does."""
        low, high = float(self.low[0]), float(self.high[0])
        first, last = math.ceil(low / step) * step, math.floor(high / step) * step
        first += step if self.low[1] and first == low else 0
        last -= step if self.high[1] and last == high else 0
        if is_integer:
            first, last = math.ceil(first), math.floor(last)
        return first <= last


def _is_written(value: Fraction, end: Fraction, num_places: int) -> bool:
    """Whether a number is written with its decimal places, where the bound on the side away from 0 is `end`."""
    if value.denominator == 1:
        return True
    if value == end:
        return bool(places(value) == num_places)
    return bool(math.floor(abs(end) * 10**num_places) != abs(value) * 10**num_places)  # not if `end` begins with it


def _check_numbers(parts: Parts) -> None:
    """ValueError if these parts allow numbers, and llguidance would take none for some; or some for none, where all
    values are numbers. Beside texts it then answers with these alone."""
    steps = [exact(part["multipleOf"]) for part in parts if is_number(part.get("multipleOf"))]
    kinds = _kinds(parts)
    if not steps or "number" not in kinds:
        return
    step = steps[0]
    for other in steps[1:]:
        step = common(step, other)
    shift = 10 ** max(map(places, steps))
    if len(steps) > 1 and step * shift * max(steps) * shift >= MAX_COUNTED:
        raise ValueError(f"multipleOf: got {_listed(steps)} for one number, expected smaller ones or fewer digits")

    check_work(step)

    is_integer = any(map(schema_is_integer, parts))
    whole = common(step, Fraction(1)) if is_integer else step
    ranges = _ranges(parts)
    is_any_left = any(span.has_written(whole, places(step)) for span in ranges)
    is_taken = any(span.is_taken_for_some(float(step), is_integer=is_integer) for span in ranges)
    if is_any_left == is_taken or (is_any_left and "other" in kinds):
        return
    words = "integers" if is_integer else "numbers"
    raise ValueError(
        f"multipleOf: got {_listed(steps)} for {words} whose bounds or values stand in other parts of the schema, and"
        " allow too few of them, expected all in one part"
    )


def _listed(steps: Sequence[Fraction]) -> str:
    return " and ".join(f"{float(step):g}" for step in dict.fromkeys(steps))


def _kinds(parts: Parts) -> set[str]:
    """Which of "number" and "other" the values of these parts are, as far as their own types and values tell."""
    kinds = {"number", "other"}
    for part in parts:
        own = part.get("type")
        own = [own] if isinstance(own, str) else own
        if isinstance(own, list):
            kinds &= {"number" if kind in ("number", "integer") else "other" for kind in own}
        if (values := _values(part)) is not None:
            kinds &= {"number" if is_number(value) else "other" for value in values}
    return kinds


def _values(part: Mapping[str, Any]) -> list[Any] | None:
    if "const" in part:
        return [part["const"]]
    return part["enum"] if isinstance(part.get("enum"), list) else None


def _ranges(parts: Parts) -> list[_Range]:
    """Where the numbers of these parts lie: between bounds, or at values. A side without a bound allows all."""
    low = max(_ends(parts, "minimum", "exclusiveMinimum"), key=lambda end: (end[0], end[1]), default=None)
    high = min(_ends(parts, "maximum", "exclusiveMaximum"), key=lambda end: (end[0], not end[1]), default=None)
    lists = [[exact(value) for value in values if is_number(value)] for part in parts if (values := _values(part))]
    if not lists:
        return [_Range(low, high)] if low and high and low[0] <= high[0] else []
    common_values = [value for value in lists[0] if all(value in some for some in lists)]
    return [
        _Range((value, False), (value, False))
        for value in common_values
        if (low is None or low <= (value, False)) and (high is None or (value, high[1]) <= (high[0], False))
    ]


def _ends(parts: Parts, inclusive: str, exclusive: str) -> Iterator[tuple[Fraction, bool]]:
    """The bounds of one side, each with whether it is exclusive."""
    for part in parts:
        if is_number(value := part.get(inclusive)):
            yield exact(value), False
        if is_number(value := part.get(exclusive)):
            yield exact(value), True
