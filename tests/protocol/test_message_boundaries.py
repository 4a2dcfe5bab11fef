"""Every message of every boundary crosses it and comes back equal; no boundary takes a message of another.

Of messages that nobody would think of, what is taken is what was sent, and everything else is one short error.
"""

from copy import deepcopy
from dataclasses import fields
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import WireError
from protocol.message import MAX_MESSAGE_BYTES, VERSION, Boundary
from tests.protocol.values import BOUNDARIES, KINDS, name, values_of


@pytest.mark.parametrize("boundary,kind", KINDS, ids=name)
def test_round_trip(boundary: Boundary[Any], kind: type[Any]) -> None:
    @settings(max_examples=20)
    @given(values_of(kind))
    def check_round_trip(message: Any) -> None:
        raw = boundary.encode(message)
        back = boundary.decode(raw)
        assert back == message and type(back) is kind
        for field in fields(message):
            assert type(getattr(back, field.name)) is type(getattr(message, field.name))

    check_round_trip()


@pytest.mark.parametrize("boundary,kind", KINDS, ids=name)
def test_another_boundary_refuses_it_by_name(boundary: Boundary[Any], kind: type[Any]) -> None:
    raw: bytes = msgpack.packb([VERSION, kind.__name__, {}])
    for other, kinds in BOUNDARIES:
        if kind not in kinds:
            with pytest.raises(WireError, match=f"{other.name}: unknown message '{kind.__name__}'"):
                other.decode(raw)


@pytest.mark.parametrize("kinds", [kinds for _, kinds in BOUNDARIES], ids=[b.name for b, _ in BOUNDARIES])
def test_messages_are_frozen_and_documented(kinds: tuple[type[Any], ...]) -> None:
    for kind in kinds:
        assert kind.__dataclass_params__.frozen, kind
        assert kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("), kind


# ---- wrong values ----

NUMBERS = [True, False, 0, 1, -1, 5, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, 1.0, -1.5, 1e308]
TEXTS = [float("nan"), float("inf"), "", "5", "x", "\x00", "\x1b[31m\n", "x" * 300, b"", b"x"]
LISTS = [[], [None], [[]], [1, 2, 3], ["1"], [0] * 50, {}, {"x": 1}, msgpack.ExtType(1, b"x"), msgpack.Timestamp(0)]
ODD: st.SearchStrategy[Any] = st.sampled_from([None, *NUMBERS, *TEXTS, *LISTS])
ANY = ODD | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8) | st.binary(max_size=8)


def places(fields: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a message's fields where another value can stand."""
    if isinstance(fields, dict):
        paths = [(*path, key) for key in fields]
        return paths + [deeper for key, value in fields.items() for deeper in places(value, (*path, key))]
    if isinstance(fields, list):
        paths = [(*path, index) for index in range(len(fields))]
        return paths + [deeper for index, value in enumerate(fields) for deeper in places(value, (*path, index))]
    return []


def put(fields: Any, path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        fields = fields[step]
    fields[path[-1]] = deepcopy(value)  # the next value may be put into this one


def taken_or_refused(boundary: Boundary[Any], raw: bytes) -> Any:
    """The message, or None when it was refused in a short sentence."""
    try:
        return boundary.decode(raw)
    except WireError as error:
        said = error.message
    assert said.startswith(f"{boundary.name}: ") and len(said) < 1000
    return None


def contains(taken: Any, sent: Any) -> bool:
    """Whether `taken` is `sent`, with the fields that `sent` has left out."""
    if isinstance(taken, dict) and isinstance(sent, dict):
        return all(key in taken and contains(taken[key], value) for key, value in sent.items())
    if isinstance(taken, list) and isinstance(sent, list):
        return len(taken) == len(sent) and all(map(contains, taken, sent))
    if {type(taken), type(sent)} == {int, float}:
        return float(taken) == float(sent)  # a float field holds the nearest number
    return type(taken) is type(sent) and bool(taken == sent)


def check_what_is_taken(boundary: Boundary[Any], kind: type[Any], num_messages: int) -> None:
    """Puts wrong values, two at most, into every place of good messages."""
    num_refused = 0

    @given(values_of(kind), st.data())
    @settings(max_examples=num_messages)
    def check_one(message: Any, data: st.DataObject) -> None:
        nonlocal num_refused
        fields: Any = msgpack.unpackb(boundary.encode(message), strict_map_key=False)[2]
        for is_again in (False, True):
            where = places(fields)
            if is_again and data.draw(st.booleans()):
                fields[data.draw(st.text(max_size=5))] = data.draw(ANY)
            elif where:
                put(fields, data.draw(st.sampled_from(where)), data.draw(ANY))
        raw: bytes = msgpack.packb([VERSION, kind.__name__, fields])
        taken = taken_or_refused(boundary, raw)
        if taken is None:
            num_refused += 1
            return
        assert type(taken) is kind
        assert contains(msgpack.unpackb(boundary.encode(taken), strict_map_key=False)[2], msgpack.unpackb(raw)[2])

    check_one()
    assert num_refused >= num_messages // 3


@pytest.mark.parametrize("boundary,kind", KINDS, ids=name)
def test_what_is_taken_is_what_was_sent(boundary: Boundary[Any], kind: type[Any]) -> None:
    check_what_is_taken(boundary, kind, 12)
    assert boundary.max_bytes <= MAX_MESSAGE_BYTES


@pytest.mark.slow
@pytest.mark.broad
@pytest.mark.parametrize("boundary,kind", KINDS, ids=name)
def test_what_is_taken_is_what_was_sent_thousands_of_times(boundary: Boundary[Any], kind: type[Any]) -> None:
    check_what_is_taken(boundary, kind, 120)
    assert len(KINDS) * 120 >= 2000


@given(st.sampled_from(KINDS), st.data())
@settings(max_examples=100)
def test_a_message_with_bytes_changed_or_cut(which: tuple[Boundary[Any], type[Any]], data: st.DataObject) -> None:
    boundary, kind = which
    raw = bytearray(boundary.encode(data.draw(values_of(kind))))
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))]) if data.draw(st.booleans()) else bytes(raw)
    taken = taken_or_refused(boundary, cut)
    assert taken is None or taken == boundary.decode(boundary.encode(taken))
