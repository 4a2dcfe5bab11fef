"""The shape of every state machine here: an enum, a table of legal moves, one `advance` that refuses the rest.

What it does not know: any particular machine.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)


def advance(table: Mapping[S, frozenset[S]], old: S, new: S) -> S:
    """`new`, if the table allows the move; an assertion error names the move otherwise: it is our own bug."""
    if new not in table[old]:
        raise AssertionError(f"illegal move {old.name} -> {new.name}")
    return new
