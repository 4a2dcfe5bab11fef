from dataclasses import dataclass
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import WireError
from protocol.message import (
    VERSION,
    Blob,
    Boundary,
    Count,
    Endpoint,
    Flag,
    Id,
    Instance,
    Int,
    Ints,
    Message,
    Number,
    Positive,
    Seconds,
    Text,
    WorkerId,
)


@dataclass(frozen=True)
class Point(Message):
    """Two numbers."""

    x: Int
    y: Number = 0.0


@dataclass(frozen=True)
class Path(Message):
    """Messages within a message."""

    name: Text
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Elsewhere(Message):
    """Of another boundary."""

    x: Int


PATHS: Boundary[Point | Path] = Boundary("a to b", (Point, Path))


@given(st.text(), st.lists(st.builds(Point, st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False))))
def test_round_trip(name: str, points: list[Point]) -> None:
    finite = tuple(point for point in points if abs(point.y) != float("inf"))
    path = Path(name, finite)
    assert PATHS.decode(PATHS.encode(path)) == path
    assert PATHS.decode(memoryview(PATHS.encode(path))) == path


def packed(*parts: object) -> bytes:
    raw: bytes = msgpack.packb(list(parts))
    return raw


@pytest.mark.parametrize(
    "raw,says",
    [
        (b"", "a to b: not a msgpack message"),
        (b"\xc1", "a to b: not a msgpack message"),
        (packed(VERSION, "Point", {"x": 1})[:-1], "a to b: not a msgpack message"),
        (packed(VERSION, "Point", {"x": 1}) + b"\x00", "a to b: not a msgpack message"),
        (b"\x93\x01\xa1\xff\x80", "a to b: not a msgpack message"),  # a name that is not UTF-8
        (b"\x91" * 5000 + b"\x01", "a to b: not a msgpack message"),
        (b"\xdd\xff\xff\xff\xff", "a to b: not a msgpack message"),  # it says that it is huge
        (b"\xdb\xff\xff\xff\xff", "a to b: not a msgpack message"),
        (b"\xdd\x00\x10\x00\x00" + b"\x90" * 0x100000, "a to b: got tuple, expected [version, name, fields]"),
        (b"\x93\x01\xa5Point\x83\xa1x\x01\xa1y\x01\xa1x\x02", "a to b: not a msgpack message (key 'x' appears twice)"),
        (msgpack.packb({"x": 1}), "a to b: got dict, expected [version, name, fields]"),
        (msgpack.packb(7), "a to b: got int, expected [version, name, fields]"),
        (packed(VERSION, "Point"), "expected [version, name, fields]"),
        (packed(1, "Point", {"x": 1}), "a to b: message version 1, expected 2"),
        (packed("2", "Point", {"x": 1}), "a to b: message version '2', expected 2"),
        (packed(True, "Point", {"x": 1}), "a to b: message version True, expected 2"),
        (packed(2.0, "Point", {"x": 1}), "a to b: message version 2.0, expected 2"),
        (packed(VERSION, "x" * 100_000, {}), "a to b: unknown message 'xxx"),
        (packed(VERSION, "Elsewhere", {"x": 1}), "unknown message 'Elsewhere', expected one of ['Path', 'Point']"),
        (packed(VERSION, 5, {"x": 1}), "unknown message 5"),
        (packed(VERSION, "Point", [1, 2]), "a to b: Point carries tuple, expected a map"),
        (packed(VERSION, "Point", {"y": 1.0}), "a to b: Point.x: got {'y': 1.0}, Field required"),
        (packed(VERSION, "Point", {"x": "one"}), "a to b: Point.x: got 'one', Input should be a valid integer"),
        (packed(VERSION, "Point", {"x": 1.5}), "a to b: Point.x: got 1.5"),
        (packed(VERSION, "Point", {"x": None}), "a to b: Point.x: got None"),
        (packed(VERSION, "Point", {"x": 1, "z": 2}), "a to b: Point.z: got 2, Unexpected keyword argument"),
        (packed(VERSION, "Point", {"x": 1, "y": float("nan")}), "a to b: Point.y: got nan"),
        (packed(VERSION, "Point", {"x": 1, "y": float("inf")}), "a to b: Point.y: got inf"),
        (packed(VERSION, "Path", {"name": "p", "points": [{"x": 1}, {"x": []}]}), "a to b: Path.points.1.x: got ()"),
        (packed(VERSION, "Point", {b"x": 1}), "a to b: Point."),
    ],
)
def test_what_is_wrong_is_named(raw: bytes, says: str) -> None:
    with pytest.raises(WireError) as caught:
        PATHS.decode(raw)
    assert says in caught.value.message


TOO_LONG = "x" * 257
OF_WORDS: list[tuple[Any, list[Any], list[Any]]] = [  # a word, values that are taken, and values that are refused
    (Int, [-(2**63), 2**64 - 1], [1.0, True, "1", None]),
    (Count, [0, 2**63 - 1], [-1, 2**63, 1.0, True, "0"]),
    (Positive, [1, 2**63 - 1], [0, -5, 2**63, 1.5]),
    (Instance, [0, 2**64 - 1], [-1, 12.0, True, "12"]),
    (Number, [-1.5, 1], [float("nan"), float("-inf"), "1", True]),
    (Seconds, [0.0, 9.5], [-0.5, float("nan"), float("inf"), "1"]),
    (Flag, [True], [1, 0, "true", None]),
    (Text, ["", "\0" * 999], [b"x", 5, None]),
    (Id, ["r", "\n", TOO_LONG[1:]], ["", TOO_LONG, b"r", 5]),
    (WorkerId, ["d", "!~", "d" * 128], ["", "d" * 129, "d d", "d\x1b[31m", "d\n", "d\0", "w\u00f6rker", b"d"]),
    (Endpoint, ["", "tcp://a:1", TOO_LONG[1:]], ["tcp://a b:1", "tcp://\0", "a\n", TOO_LONG, 5]),
    (Blob, [b"", b"\xff" * (256 * 1024)], [b"\0" * (256 * 1024 + 1), "x", 5]),
    (Ints, [(), (1, -1)], [(1, "1"), (None,) * 9, "12", (1.0,)]),
]


@pytest.mark.parametrize(("word", "fine", "wrong"), OF_WORDS)
def test_each_word_takes_what_it_says_and_nothing_else(word: Any, fine: list[Any], wrong: list[Any]) -> None:
    kind: Any = dataclass(frozen=True)(
        type("Only", (Message,), {"__annotations__": {"field": word}, "__doc__": "One field."})
    )
    boundary: Boundary[Any] = Boundary("a to b", (kind,))
    for value in fine:
        assert boundary.decode(packed(VERSION, "Only", {"field": value})) == kind(value)
    for value in wrong:
        with pytest.raises(WireError, match=r"a to b: Only\.field.*: got "):
            boundary.decode(packed(VERSION, "Only", {"field": value}))


def test_a_long_value_is_cut_in_the_error() -> None:
    with pytest.raises(WireError) as caught:
        PATHS.decode(packed(VERSION, "Point", {"x": "a" * 10_000}))
    assert len(caught.value.message) < 300


def test_a_huge_message_is_refused_before_it_is_parsed() -> None:
    small: Boundary[Point] = Boundary("a to b", (Point,), max_bytes=10)
    with pytest.raises(WireError, match="message of 11 bytes, expected at most 10"):
        small.decode(b"\xc1" * 11)
    with pytest.raises(WireError, match="message of 11 bytes, expected at most 3"):
        small.decode(b"\xc1" * 11, max_bytes=3)


@given(st.binary(max_size=60))
def test_random_bytes_never_do_more_than_a_wire_error(raw: bytes) -> None:
    with pytest.raises(WireError):
        PATHS.decode(raw)
