"""Refuses fields by tables: those that are not supported, unless their value changes nothing, and misspelt ones.

A field that clients of other servers know and Baton does not support is refused, unless its value changes nothing. So
is an unknown field whose name is almost a known one. Any other unknown field is ignored.
"""

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

from gateway.words.complaints import short
from gateway.words.near_names import near_name
from protocol.errors import BadRequest

ON, OFF, ZERO, ONE = (True,), (False,), (0,), (1,)
EMPTY: tuple[Any, ...] = ({}, [], "")
MAX_UNKNOWN = 200  # fields that are compared with known ones; nobody writes more by hand
Table = Mapping[str, tuple[Any, ...]]  # of fields that are not supported: the values, besides null, that change nothing


def each(names: str, neutral: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """A part of such a table: fields that have the same values."""
    return dict.fromkeys(names.split(), neutral)


def refuse_values(body: Mapping[str, Any], table: Table, inside: str = "") -> None:
    """BadRequest for the first field of `table` that has a value which changes something. `inside`: what stands before
    a field's name in the error."""
    for name, neutral in table.items():
        value = body.get(name)
        if value is not None and not any(_same(value, neutral_value) for neutral_value in neutral):
            raise BadRequest(f"{inside}{name}: got {short(value)}, which is not supported", param=inside + name)


def refuse_misspelt(body: Mapping[str, Any], known: Collection[str], table: Table, inside: str = "") -> None:
    """BadRequest for an unknown field that is almost a known one, unless its value would change nothing there (`table`)
    or the known field is there, too. `inside`: see refuse_values."""
    unknown = (name for name, value in body.items() if value is not None and name not in known)
    for name in islice(unknown, MAX_UNKNOWN):
        meant = near_name(name, known)
        if (
            meant is None
            or meant in body
            or any(_same(body[name], neutral_value) for neutral_value in table.get(meant, ()))
        ):
            continue
        raise BadRequest(f"{inside}{short(name)[1:-1]}: unknown field, expected {meant}", param=inside + name)


def _same(value: Any, neutral: Any) -> bool:
    """Whether two values are equal. 1 equals 1.0, but not `true`."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
