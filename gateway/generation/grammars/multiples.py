"""Makes `multipleOf` in one object of a JSON schema exact, for a grammar: with the bounds and values beside it.

llguidance writes each multiple of 0.25 with two decimal places or with none, so 0.5 as 0.50. It writes no 0.50 where
the upper bound is 0.5, or 0.505. It finds multiples within bounds by dividing doubles: 7 / 0.7 is more than 10 there.
So bounds move to where it reads them as they are:

    minimum 0.3, maximum 0.5, multipleOf 0.1  -->  minimum 0.25, exclusiveMaximum 0.6, multipleOf 0.1
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final, TypeGuard

MAX_COUNTED: Final = 2**32  # a multiple without its decimal point is less
MAX_REMAINDERS: Final = 20_000  # when a number is divided by a multiple
MAX_DIGITS: Final = 15  # of a bound
_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def exact(value: float) -> Fraction:
    """The number that a client has written."""
    return Fraction(repr(value))


def with_exact_multiples(schema: dict[str, Any]) -> dict[str, Any]:
    """The same numbers in bounds and multiples that llguidance reads as they are. ValueError for a multiple of 0 or
    less, or of too many digits."""
    multiple = schema.get("multipleOf")
    if not is_number(multiple) or not math.isfinite(multiple):
        return schema
    if multiple <= 0:
        raise ValueError(f"multipleOf: got {multiple}, expected a number above 0")
    step = exact(multiple)
    if schema_is_integer(schema):
        step = common(step, Fraction(1))
    check_work(step)
    changed = _with_own_values(schema, step)
    if "multipleOf" not in changed:
        return changed
    changed["multipleOf"] = step.numerator if step.denominator == 1 else float(step)
    first, last = _last_multiple(changed, _LOWER, -1, step), _last_multiple(changed, _UPPER, 1, step)
    if first is not None and last is not None and first > last:
        return {**changed, "minimum": 1, "maximum": 0}  # there is none
    _move(changed, _LOWER, -1, first, step)
    _move(changed, _UPPER, 1, last, step)
    return changed


def check_counted(schema: Mapping[str, Any]) -> None:
    """ValueError for a multiple that llguidance takes for another one, or for none. It multiplies doubles by 10 until
    no fraction is left, and 0.07 times 10 has one."""
    multiple = schema.get("multipleOf")
    if is_number(multiple) and _as_counted(multiple) != exact(multiple):
        raise ValueError(
            f"multipleOf: got {multiple}, which doubles do not count exactly, expected one that they do, such as 0.01,"
            f" and less than {MAX_COUNTED} without its decimal point"
        )


def check_work(step: Fraction) -> None:
    """ValueError for a multiple that takes too much to look for: a state for each remainder, of 5 us. So for one whose
    remainders are too large: llguidance shifts a whole number's remainder by the decimal places, in 32 bits."""
    shift = 10 ** places(step)
    number = int(step * shift)
    if (number - 1) * shift >= MAX_COUNTED:
        raise ValueError(f"multipleOf: got {float(step):.15g}, expected fewer digits, or fewer behind the point")
    while number % 10 == 0:  # zeros at its end are looked for one by one
        number //= 10
    if number > MAX_REMAINDERS:
        raise ValueError(
            f"multipleOf: got {float(step):.15g}, which takes too much to look for, expected at most {MAX_REMAINDERS}"
            " without the zeros at its end"
        )


def schema_is_integer(schema: Mapping[str, Any]) -> bool:
    """Whether the numbers of one schema are integers, by its own `type`."""
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return isinstance(kinds, list) and "integer" in kinds and "number" not in kinds


def common(one: Fraction, other: Fraction) -> Fraction:
    """The least common multiple."""
    return Fraction(
        math.lcm(one.numerator, other.numerator),
        math.gcd(one.denominator, other.denominator),
    )


def places(value: Fraction) -> int:
    """How many decimal places a decimal number has."""
    num_places = 0
    while (value * 10**num_places).denominator != 1:
        num_places += 1
    return num_places


def _as_counted(multiple: float) -> Fraction | None:
    """What llguidance takes a double for; None if it refuses it."""
    scaled, num_places = float(multiple), 0
    while not scaled.is_integer():
        scaled, num_places = scaled * 10, num_places + 1
    return Fraction(int(scaled), 10**num_places) if scaled < MAX_COUNTED else None


def _with_own_values(schema: dict[str, Any], step: Fraction) -> dict[str, Any]:
    """A copy in which the values beside a multiple are those that are multiples, and need it no more."""
    changed = dict(schema)
    if isinstance(values := schema.get("enum"), list):
        changed["enum"] = [value for value in values if not is_number(value) or exact(value) % step == 0]
    elif is_number(value := schema.get("const")):
        if exact(value) % step:
            return changed  # llguidance says that there is none
    else:
        return changed
    del changed["multipleOf"]
    return changed


def _move(schema: dict[str, Any], keywords: tuple[str, str], away: int, last: Fraction | None, step: Fraction) -> None:
    """Moves the bound of one side outwards from the last multiple there."""
    if last is None:
        return
    inclusive, exclusive = keywords
    keyword, end = inclusive, last
    if step.denominator != 1 and last * away > 0:
        keyword, end = exclusive, last + away * Fraction(1, 10 ** places(step))
    elif step.denominator != 1 and last:
        end = last + away * step / 2

    moved = end.numerator if end.denominator == 1 else float(end)
    if exact(moved) == end and len(str(abs(end) * 10 ** places(end))) <= MAX_DIGITS:
        for other in keywords:
            schema.pop(other, None)
        schema[keyword] = moved


def _last_multiple(schema: Mapping[str, Any], keywords: tuple[str, str], away: int, step: Fraction) -> Fraction | None:
    """The last multiple on one side that the bounds there allow; None without a bound."""
    inclusive, exclusive = (schema.get(keyword) for keyword in keywords)
    bounds = []
    if is_number(inclusive):
        bounds.append((exact(inclusive), False))
    if is_number(exclusive):
        bounds.append((exact(exclusive), True))
    lasts = []
    for bound, is_exclusive in bounds:
        number = (away * bound) // step  # of steps from 0, in the direction of the bound
        if is_exclusive and number * step == away * bound:
            number -= 1
        lasts.append(number)
    return away * min(lasts) * step if lasts else None
