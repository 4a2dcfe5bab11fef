"""Bounds of numbers: what a grammar allows lies within them, and what lies in their middle is allowed."""

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from gateway.generation.grammars.bounds import MAX_DIGITS, exact_bounds, fractions_in, with_numeric_bounds
from gateway.words.request import Grammar
from tests.byte_grammars import END, check, matcher_of

WHOLE = (0, 1, 2, 3, 7, 10, 100, 255, 1000, 123_456, 10**9 + 1)
PARTS = ("0.5", "0.25", "0.1", "0.01", "0.99")
BY_NAME = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
Bounds = dict[str, tuple[Decimal, bool]]  # by minimum and maximum: the number, and whether it is exclusive


def drawn(rng: random.Random) -> Bounds:
    """Bounds with the same integer part, or with others; in one of two the lower one is below 0."""
    low = Decimal(rng.choice(WHOLE))
    high = low + Decimal(rng.choice((*PARTS, *PARTS, "1", "2.5")))
    if rng.random() < 0.3:
        low, high = low + Decimal("0.001"), high + Decimal(rng.choice(("0", "1")))
    if rng.random() < 0.5:
        low, high = -high, -low
    return {"minimum": (low, rng.random() < 0.6), "maximum": (high, rng.random() < 0.6)}


def forms(bounds: Bounds) -> Iterator[dict[str, Any]]:
    """Schemas that say these bounds."""
    parts = [{BY_NAME[name] if is_exclusive else name: number(bound)} for name, (bound, is_exclusive) in bounds.items()]
    yield {"type": "number"} | parts[0] | parts[1]
    yield parts[0] | parts[1]
    yield {"allOf": [{"type": "number"}, *parts]}
    yield {"type": "number", **parts[0], "allOf": [{"$ref": "#/$defs/b"}], "$defs": {"b": parts[1]}}
    yield {"type": "number", **parts[0], **parts[1], "multipleOf": 0.001}
    flags = {BY_NAME[name]: True for name, (_, is_exclusive) in bounds.items() if is_exclusive}
    plain = {name: number(bound) for name, (bound, _) in bounds.items()}
    yield {"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", **plain, **flags}


def number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def is_within(value: Decimal, bounds: Bounds) -> bool:
    (low, is_above), (high, is_below) = bounds["minimum"], bounds["maximum"]
    return low <= value <= high and not (is_above and value == low) and not (is_below and value == high)


def near(bounds: Bounds) -> set[Decimal]:
    """Numbers at the bounds and beside them."""
    steps = [Decimal(each) for each in ("0", "0.001", "0.01", "0.1", "0.5", "1", "1e-12")]
    found = {bound + sign * step for bound, _ in bounds.values() for step in steps for sign in (1, -1)}
    return found | {each.quantize(Decimal("0.000")) for each in found}


@pytest.mark.parametrize("seed", range(60))
def test_numbers_beside_their_bounds_are_allowed_only_within(seed: int) -> None:
    bounds = drawn(random.Random(seed))
    middle = ((bounds["minimum"][0] + bounds["maximum"][0]) / 2).quantize(Decimal("0.001"))
    for schema in forms(bounds):
        text = check(Grammar("json", schema))
        assert isinstance(text, str), (schema, text)
        matcher = matcher_of(text)

        def allows(written: str, matcher: Any = matcher) -> bool:
            tokens = [*written.encode(), END]
            return bool(matcher.deep_copy().validate_tokens(tokens) == len(tokens))

        for value in near(bounds):
            for written in (f"{value:f}", f"{value.normalize():f}", f"-{abs(value):f}", f"-{abs(value.normalize()):f}"):
                assert is_within(Decimal(written), bounds) or not allows(written), (schema, written)
        written = format(middle.normalize(), "f")
        assert allows(written), (schema, written)


def test_an_exclusive_bound_moves_only_beside_a_fraction_that_begins_alike() -> None:
    def moved(fraction: float, **schema: Any) -> dict[str, Any]:
        return exact_bounds(frozenset([fraction]))(schema)

    assert moved(0.5, exclusiveMinimum=0) == {"exclusiveMinimum": 1e-9}
    assert moved(-0.5, exclusiveMaximum=0) == {"exclusiveMaximum": -1e-9}
    assert moved(3.5, exclusiveMinimum=3) == {"exclusiveMinimum": 3.000000001}
    assert moved(3.75, exclusiveMinimum=3.5) == {"exclusiveMinimum": 3.5}
    schema: dict[str, Any]
    for schema in ({"exclusiveMinimum": 2}, {"exclusiveMinimum": 4}, {"minimum": 3}, {"exclusiveMaximum": 3}):
        assert moved(3.5, **schema) == schema
    for schema in ({"exclusiveMinimum": "3"}, {"exclusiveMinimum": False, "minimum": 3}, {"exclusiveMinimum": True}):
        assert moved(3.5, **schema) == schema


def test_exclusive_bounds_of_draft_4_become_numbers() -> None:
    assert with_numeric_bounds({"minimum": 1, "exclusiveMinimum": True}) == {"exclusiveMinimum": 1}
    assert with_numeric_bounds({"maximum": 0.5, "exclusiveMaximum": True}) == {"exclusiveMaximum": 0.5}
    assert with_numeric_bounds({"maximum": 1, "exclusiveMaximum": False}) == {"maximum": 1}
    assert with_numeric_bounds({"exclusiveMaximum": True}) == {}
    assert with_numeric_bounds({"minimum": 1, "exclusiveMinimum": 2}) == {"minimum": 1, "exclusiveMinimum": 2}


def test_fractions_are_bounds_that_are_no_whole_numbers() -> None:
    schema = {"minimum": 0.5, "exclusiveMaximum": 2.0, "maximum": 3, "multipleOf": 0.1, "exclusiveMinimum": "0.5"}
    assert list(fractions_in(schema)) == [0.5]


@pytest.mark.parametrize("seed", range(30))
def test_a_fraction_with_many_digits_is_a_bound_or_is_refused(seed: int) -> None:
    rng = random.Random(seed)
    whole = rng.choice(WHOLE)
    num_digits = rng.randint(12, 17)
    digits = num_digits - (len(str(whole)) if whole else 0)
    part = rng.randrange(10 ** (digits - 1), 10**digits) * 10 + 3
    value = float(f"{whole}.{part}")
    bounds = {"minimum": (Decimal(repr(value)), rng.random() < 0.5), "maximum": (Decimal(whole + 1), False)}
    text = check(Grammar("json", next(forms(bounds))))
    length = len(Decimal(repr(value)).as_tuple().digits)
    assert isinstance(text, str) == (length <= MAX_DIGITS), (value, text)
    if not isinstance(text, str):
        assert str(value) in text.message and f"expected at most {MAX_DIGITS} digits" in text.message
        return
    matcher = matcher_of(text)
    for place in range(length + 2):
        for sign in (1, -1, 0):
            written = f"{bounds['minimum'][0] + sign * Decimal(10) ** -place:f}"
            tokens = [*written.encode(), END]
            is_allowed = matcher.deep_copy().validate_tokens(tokens) == len(tokens)
            assert is_within(Decimal(written), bounds) or not is_allowed, (bounds, written)


@pytest.mark.parametrize("seed", range(20))
def test_a_narrow_range_beside_a_bound_is_not_empty(seed: int) -> None:
    rng = random.Random(seed)
    low, places, sign = Decimal(rng.choice((0, 1, 7, 1000))), rng.randint(6, 11), rng.choice((1, -1))
    high = low + Decimal(rng.randint(1, 9)).scaleb(-places)
    ends = sorted((sign * low, sign * high))
    bounds = {"minimum": (ends[0], True), "maximum": (ends[1], rng.random() < 0.5)}
    text = check(Grammar("json", next(forms(bounds))))
    if not isinstance(text, str):
        assert len(str(low)) + places >= MAX_DIGITS and "expected none so near to each other" in text.message
        return
    matcher = matcher_of(text)
    for value, is_allowed in (((ends[0] + ends[1]) / 2, True), (ends[0], False), (ends[1], None)):
        tokens = [*f"{value:f}".encode(), END]
        found = matcher.deep_copy().validate_tokens(tokens) == len(tokens)
        assert found == is_allowed or (is_allowed is None and (is_within(value, bounds) or not found)), (bounds, value)


def test_bounds_without_a_number_between_them_are_refused() -> None:
    for schema in ({"exclusiveMinimum": 0, "maximum": 1e-15}, {"exclusiveMinimum": 12345, "maximum": 12345.0000000001}):
        told = check(Grammar("json", schema))
        assert not isinstance(told, str) and "so near to each other" in told.message


@pytest.mark.parametrize("bound", (10**400, -(10**400), float("inf")), ids=("large", "small", "infinite"))
def test_a_bound_beyond_all_that_are_counted_is_refused_beside_a_fraction(bound: float) -> None:
    for schema in ({"exclusiveMinimum": bound, "maximum": 0.5}, {"minimum": 0.5, "exclusiveMaximum": bound}):
        told = check(Grammar("json", schema))
        assert not isinstance(told, str) and "got the number" in told.message and "none beyon" in told.message


def test_many_bounds_beside_many_fractions_are_changed_in_their_order() -> None:
    """Each bound is looked up among the fractions, and not compared with each."""
    looks = 0

    class Counted(float):
        def __lt__(self, other: float) -> bool:
            nonlocal looks
            looks += 1
            return float(self) < other

        def __gt__(self, other: float) -> bool:
            nonlocal looks
            looks += 1
            return float(self) > other

    changed = exact_bounds(frozenset(Counted(whole + 0.5) for whole in range(1000)))
    for whole in range(1000):
        assert changed({"exclusiveMinimum": whole}) == {"exclusiveMinimum": whole + 1e-9}
    assert looks < 50_000
