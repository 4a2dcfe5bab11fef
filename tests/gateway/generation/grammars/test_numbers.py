"""Numbers at the ends of what doubles hold: each is followed exactly, or refused with its keyword and its value."""

import random
from decimal import Decimal
from typing import Any

import pytest
from llguidance import LLMatcher

from gateway.generation.grammars.bounds import MAX_PLACES
from gateway.generation.grammars.numbers import MAX_NUMBER, check_numbers, is_read_exactly
from gateway.words.request import Grammar
from tests.byte_grammars import END, check, matcher_of

FORMS: tuple[Any, ...] = (
    {"const": 0},
    {"enum": ["a", 0]},
    {"minimum": 0},
    {"exclusiveMaximum": 0},
    {"multipleOf": 0},
    {"const": {"minimum": [0]}},
)


def drawn(rng: random.Random) -> float:
    num_digits = rng.randint(1, 17)
    exponent = rng.choice((-num_digits, rng.randint(-40, 0), rng.randint(-323, -num_digits)))
    return rng.choice((1, -1)) * float(f"{rng.randrange(10 ** (num_digits - 1), 10**num_digits)}e{exponent}")


def is_allowed(text: str, value: Decimal) -> bool:
    tokens = [*f"{value.normalize():f}".encode(), END]
    return bool(matcher_of(text).validate_tokens(tokens) == len(tokens))


@pytest.mark.parametrize("seed", range(10))
def test_what_is_read_exactly_is_what_llguidance_takes_for_itself(seed: int) -> None:
    rng = random.Random(seed)
    found = {True: 0, False: 0}
    for _ in range(100):
        value = drawn(rng)
        if not value or value.is_integer():
            continue
        text = LLMatcher.grammar_from_json_schema({"const": value})
        assert is_read_exactly(value) == is_allowed(text, Decimal(repr(value))), value
        found[is_read_exactly(value)] += 1
    assert min(found.values()) > 5


@pytest.mark.parametrize("seed", range(10))
def test_a_number_is_its_only_answer_or_is_refused_with_its_keyword(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        value = drawn(rng)
        text = check(Grammar("json", {"const": value}))
        if isinstance(text, str):
            assert is_allowed(text, Decimal(repr(value))), value
        else:
            assert f"const: got the number {value}, " in text.message


@pytest.mark.parametrize("seed", range(10))
def test_a_bound_near_to_0_is_followed_or_refused_with_its_keyword(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        value, keyword = drawn(rng), rng.choice(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
        flags = {"$schema": "http://json-schema.org/draft-04/schema#", keyword.replace("exclusiveM", "m"): value}
        is_flag = keyword.startswith("exclusive") and rng.random() < 0.5
        schema = {"type": "number", **(flags | {keyword: True} if is_flag else {keyword: value})}
        text = check(Grammar("json", schema))
        if not isinstance(text, str):
            assert str(value) in text.message and any(f"{each}: " in text.message for each in (keyword, [*flags][1])), (
                text
            )
            continue
        exact = Decimal(repr(value))
        beside = abs(exact).scaleb(-1)
        for each in (exact, exact + beside, exact - beside, 3 * exact, -exact):
            within = each > exact if "inimum" in keyword else each < exact
            is_valid = within or (each == exact and not keyword.startswith("exclusive"))
            assert is_allowed(text, each) == is_valid, (schema, each)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [1e300, -1e300, 2**53 + 1, 10**400, 4.9e-35, 9007199254740991.0])
def test_a_refusal_names_the_keyword_and_the_number(form: dict[str, Any], value: float) -> None:
    def put(each: Any) -> Any:
        if isinstance(each, dict):
            return {key: put(inner) for key, inner in each.items()}
        if isinstance(each, list):
            return [put(inner) for inner in each]
        return value if each == 0 else each

    [keyword] = form
    for schema in (put(form), {"properties": {"const": {"items": put(form)}}}, {"anyOf": [{}, put(form)]}):
        with pytest.raises(ValueError, match=rf"^{keyword}: got the number ") as caught:
            check_numbers(schema)
        assert f"got the number {str(value)[:40]}, " in str(caught.value)


def test_numbers_that_are_held_exactly_are_not_refused() -> None:
    check_numbers({"const": [MAX_NUMBER, -MAX_NUMBER, 0.1, 1e-300, 5e-324, 0.1 + 0.2, True, -0.0, 1e15]})
    check_numbers({"x-unknown": 4.9e-35, "properties": {"const": {"title": "4.9e-35"}}})


def test_a_bound_has_few_digits_behind_the_point() -> None:
    for place, is_followed in ((MAX_PLACES, True), (MAX_PLACES + 1, False)):
        for sign in (1, -1):
            value = next(
                each for each in (float(f"{digit}e-{place}") for digit in range(1, 10)) if is_read_exactly(each)
            )
            schema = {"type": "number", "minimum" if sign > 0 else "maximum": sign * value}
            assert isinstance(check(Grammar("json", schema)), str) == is_followed


@pytest.mark.parametrize("seed", range(10))
def test_a_multiple_with_many_digits_behind_the_point_is_counted_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    num_allowed = 0
    for _ in range(40):
        num_places = rng.randint(1, 14)
        multiple = float(f"{rng.randrange(1, rng.choice((100, 20_000)))}e-{num_places}")
        text = check(Grammar("json", {"type": "number", "multipleOf": multiple}))
        if not isinstance(text, str):
            assert "multipleOf: got " in text.message
            continue
        num_allowed += 1
        step = Decimal(repr(multiple))
        for _ in range(20):
            value = Decimal(rng.randrange(10 ** rng.randint(1, 9))).scaleb(-rng.choice((0, num_places)))
            assert value % step == 0 or not is_allowed(text, value), (multiple, value)
    assert num_allowed > 3
