"""The form of every state machine: an enum, a table of legal moves, and `advance`, which refuses the rest."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)


def advance(table: Mapping[S, frozenset[S]], old: S, new: S) -> S:
    """`new`, if the table allows the move. Any other move is our own bug: AssertionError."""
    if new not in table[old]:
        raise AssertionError(f"illegal move {old.name} -> {new.name}")
    return new
