"""Whose turn it is: sides that are compared take turns, so that a drift of the machine affects all of them alike."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def in_turn(sides: Iterable[T], number: int) -> list[T]:
    """The sides in the order of round `number`: every second round begins with the last side."""
    ordered = list(sides)
    return ordered if number % 2 == 0 else ordered[::-1]
