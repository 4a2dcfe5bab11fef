"""Multiples and bounds: a number is allowed only if it is a multiple within the bounds, each such number can be
written, and where none is left the schema is refused, not the answer."""

import random
from fractions import Fraction
from typing import Any

import pytest
from llguidance import LLMatcher

from gateway.generation.grammars.multiples import check_counted, common, exact, places, with_exact_multiples
from gateway.words.request import Grammar
from tests.byte_grammars import END, check, matcher_of

STEPS = (0.5, 0.25, 0.125, 0.1, 0.01, 0.03, 0.7, 0.3, 1.5, 2.5, 3, 7, 12, 100, 0.55, 1.17)
WIDTHS = (0, 0.001, 0.1, 0.25, 0.5, 1, 3, 20)


def allows(matcher: LLMatcher, text: str) -> bool:
    tokens = [*text.encode(), END]
    return bool(matcher.deep_copy().validate_tokens(tokens) == len(tokens))


def written(value: Fraction, num_places: int) -> list[str]:
    """A number without a fraction, or with its decimal places."""
    found = [f"{float(value):.{num_places}f}"]
    return [*found, str(value)] if value.denominator == 1 else found


@pytest.mark.parametrize("seed", range(60))
def test_exactly_the_multiples_within_the_bounds_are_allowed(seed: int) -> None:
    rng = random.Random(seed)
    step = rng.choice(STEPS)
    low = rng.choice((0, 1, 2.5, 0.3, 0.7, -1, -0.5, -3)) * rng.choice((1, step))
    low, high = round(low, 6), round(low + rng.choice(WIDTHS), 6)
    is_integer = rng.random() < 0.3
    kinds = {"type": "integer" if is_integer else "number", "multipleOf": step}
    ends = {rng.choice(("minimum", "exclusiveMinimum")): low, rng.choice(("maximum", "exclusiveMaximum")): high}
    whole = common(exact(step), Fraction(1)) if is_integer else exact(step)
    around = range(int(exact(low) // whole) - 2, int(exact(high) // whole) + 3)
    inside = [number * whole for number in around if _is_within(number * whole, ends)]

    found = check(Grammar("json", {**kinds, **ends}))
    assert isinstance(found, str) == bool(inside), found
    if not isinstance(found, str):
        assert "lies within the bounds" in found.message
        return
    matcher = matcher_of(found)
    for value in [number * whole for number in around]:
        texts = written(value, places(whole))
        assert any(allows(matcher, each) for each in texts) == (value in inside), (kinds, ends, value)
    half = exact(step) / 2 if not is_integer else exact(step)
    for value in inside:
        assert not allows(matcher, f"{float(value + half):.9f}".rstrip("0")) or value + half in inside


def _is_within(value: Fraction, ends: dict[str, float]) -> bool:
    return exact(ends.get("minimum", -1e9)) <= value <= exact(ends.get("maximum", 1e9)) and exact(
        ends.get("exclusiveMinimum", -1e9)
    ) < value < exact(ends.get("exclusiveMaximum", 1e9))


def test_a_multiple_of_two_decimal_places_is_taken_for_what_it_is_or_refused() -> None:
    num_followed = 0
    for number in range(1, 200):
        step = number / 100
        found = check(Grammar("json", {"type": "number", "multipleOf": step}))
        if not isinstance(found, str):
            assert f"multipleOf: got {step}, which doubles do not count exactly" in found.message
            continue
        num_followed += 1
        matcher, half = matcher_of(found), exact(step) / 2
        for value in range(3):
            assert any(allows(matcher, each) for each in written(value * exact(step), places(exact(step))))
        assert not allows(matcher, f"{float(half):.{places(half)}f}")
    assert num_followed > 150


@pytest.mark.parametrize("multiple", [0, -1, -0.5])
def test_a_multiple_is_above_0(multiple: float) -> None:
    with pytest.raises(ValueError, match="expected a number above 0"):
        with_exact_multiples({"multipleOf": multiple})


def test_a_multiple_of_too_many_digits_is_refused() -> None:
    for multiple in (2**32, 1e-12, 123456.78901):
        with pytest.raises(ValueError, match="without its decimal point"):
            check_counted({"multipleOf": multiple})
    check_counted({"multipleOf": 2**32 - 1})


def test_a_multiple_that_takes_too_much_to_look_for_is_refused() -> None:
    for schema in (
        {"multipleOf": 1_000_003},
        {"multipleOf": 2**31},
        {"type": "integer", "multipleOf": 1000.003},
        {"allOf": [{"type": "number", "multipleOf": 211}, {"multipleOf": 199}]},
    ):
        told = check(Grammar("json", schema))
        assert not isinstance(told, str) and "takes too much to look for" in told.message
    for multiple in (86_400, 1_000_000, 19_999):
        assert isinstance(check(Grammar("json", {"type": "integer", "multipleOf": multiple})), str)


def test_values_beside_a_multiple_are_those_that_are_multiples() -> None:
    schema: dict[str, Any] = {"multipleOf": 0.25, "enum": [0.5, 0.3, "a", True, 1]}
    assert with_exact_multiples(schema) == {"enum": [0.5, "a", True, 1]}
    assert with_exact_multiples({"multipleOf": 0.25, "const": 0.5}) == {"const": 0.5}
    told = check(Grammar("json", {"multipleOf": 0.25, "const": 0.3}))
    assert not isinstance(told, str) and "no multiple of multipleOf lies within" in told.message
