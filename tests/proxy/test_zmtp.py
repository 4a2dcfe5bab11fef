import random
from collections.abc import Iterator

import pytest

from tests.proxy.zmtp import COMMAND, GREETING_BYTES, LONG, ZmtpReader, to_bytes

GREETING = bytes(range(GREETING_BYTES))
READY = bytes([COMMAND, 5]) + b"READY"
MESSAGES = [(b"a",), (b"", b"b" * 255, b"c" * 256), (b"d" * 70_000,), (b"",)]


def pieces_of(stream: bytes, rng: random.Random) -> Iterator[bytes]:
    while stream:
        size = rng.choice((1, 2, 7, 300, 40_000))
        yield stream[:size]
        stream = stream[size:]


@pytest.mark.parametrize("seed", range(5))
def test_a_stream_is_understood_however_it_is_cut_up(seed: int) -> None:
    reader = ZmtpReader()
    stream = GREETING + READY + b"".join(map(to_bytes, MESSAGES)) + READY
    found = [each for piece in pieces_of(stream, random.Random(seed)) for each in reader.feed(piece)]
    passed = b"".join(each for each in found if isinstance(each, bytes))
    assert [each for each in found if not isinstance(each, bytes)] == MESSAGES
    assert passed == GREETING + READY + READY


def test_a_greeting_is_passed_on_before_it_is_complete() -> None:
    """Both sides wait for the other's beginning."""
    reader = ZmtpReader()
    assert reader.feed(GREETING[:10]) == [GREETING[:10]]
    assert reader.feed(GREETING[10:] + READY) == [GREETING[10:], READY]


def test_a_long_command_is_no_message() -> None:
    reader = ZmtpReader()
    long = bytes([COMMAND | LONG]) + (300).to_bytes(8, "big") + b"x" * 300
    assert reader.feed(GREETING + long) == [GREETING, long]
