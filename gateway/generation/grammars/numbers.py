"""Finds numbers in a JSON schema that are not followed exactly, because llguidance reads and counts them in doubles.

It reads 4.9e-35 as 49 / 10^36, both rounded to doubles, and takes that for 4.899999999999999e-35.
"""

from typing import Any, Final

from gateway.generation.grammars.references import MAPS, VALUES

MAX_NUMBER: Final = 2**53  # each whole number up to it is a double of its own
MAX_EXPONENT: Final = 308  # of the powers of 10 by which llguidance divides at once
_BOUNDS: Final = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split())
_READ: Final = _BOUNDS | VALUES  # keywords whose numbers may be fractions


def check_numbers(schema: Any) -> None:
    """ValueError for a number that is not followed exactly. It names the innermost keyword that holds the number."""
    left: list[tuple[Any, str, bool]] = [(schema, "", False)]  # values, with their keyword, and whether they hold names
    while left:
        value, keyword, is_map = left.pop()
        if isinstance(value, list):
            left += [(item, keyword, False) for item in value]
        elif isinstance(value, dict) and keyword in VALUES:
            left += [(item, keyword, False) for item in value.values()]
        elif isinstance(value, dict):
            left += [(item, keyword if is_map else key, not is_map and key in MAPS) for key, item in value.items()]
        elif isinstance(value, int | float):
            _check(value, keyword)


def _check(value: float, keyword: str) -> None:
    name = f"{keyword}: " if keyword else ""
    if not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise ValueError(f"{name}got the number {str(value)[:40]}, expected none beyond {MAX_NUMBER}")
    if keyword in _READ and isinstance(value, float) and not is_read_exactly(value):
        raise ValueError(
            f"{name}got the number {value}, which is not read exactly, expected at most 15 digits, 22 of them behind"
            " the point"
        )


def is_read_exactly(value: float) -> bool:
    """Whether llguidance takes a number in JSON for the double that is nearest to it."""
    digits, _, exponent = repr(abs(value)).partition("e")
    whole, _, part = digits.partition(".")
    number, power = float(int(whole + part)), int(exponent or 0) - len(part)
    if power > 0:
        return number * float(f"1e{power}") == abs(value)
    while power < -MAX_EXPONENT:
        number, power = number / 1e308, power + MAX_EXPONENT
    return number / float(f"1e{-power}") == abs(value)
