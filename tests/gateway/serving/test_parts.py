"""Long JSON in parts: the same bytes as at once, and little at a time."""

import random
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from gateway.serving import parts
from gateway.serving.parts import (
    PART_BYTES,
    Kept,
    Later,
    ids_json,
    in_blocks,
    items_of,
    list_of,
    list_with_laters,
    next_part,
    parts_of,
    text_json,
)

TEXT = 'a"\\\n\x00\x1fé\u2028😀' * 7


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("IDS", 4), ("CHARS", 5), ("TEXTS", 3)):
        monkeypatch.setattr(parts, name, size)


def draw(rng: random.Random, depth: int = 3) -> tuple[Any, Any]:
    """A value with Laters within it, and the same without."""
    kind = rng.choice(("plain", "text", "ids", "items", "laters", "groups", "object")) if depth else "plain"
    if kind == "plain":
        value: Any = rng.choice((None, True, -1.5, 2**53, "", TEXT, [], {}, [1, {"\0": "\0"}]))
        return value, value
    if kind == "text":
        pieces = [TEXT[: rng.randrange(12)] for _ in range(rng.randrange(9))]
        return text_json(pieces, sum(map(len, pieces))), "".join(pieces)
    if kind == "ids":
        ids = [rng.randrange(1000) for _ in range(rng.randrange(20))]
        return ids_json(ids), ids
    if kind == "items":
        items = [draw(rng, 0)[1] for _ in range(rng.randrange(9))]
        return in_blocks(lambda: items, rng.randrange(1, 5)), items
    if kind == "groups":
        groups = [[place] * rng.randrange(4) for place in range(rng.randrange(5))]
        laters = [Later(lambda group=group: items_of(lambda: group, 2)) for group in groups]  # type: ignore[misc]
        return list_of(laters), [each for group in groups for each in group]
    pairs = [draw(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == "laters":
        return list_with_laters(lambda: [each for each, _ in pairs]), [each for _, each in pairs]
    names = [str(place) for place in range(len(pairs))]
    return dict(zip(names, (each for each, _ in pairs), strict=True)), dict(
        zip(names, (each for _, each in pairs), strict=True)
    )


def test_parts_are_the_bytes_of_the_whole() -> None:
    rng, num_blocks = random.Random(11), 0
    for _ in range(2000):
        value, plain = draw(rng)
        blocks = list(parts_of(value))
        num_blocks += len(blocks)
        assert b"".join(blocks) == orjson.dumps(plain)
    assert num_blocks > 6000, "most of them are in several blocks"


def test_what_is_short_is_encoded_at_once() -> None:
    value = {"text": text_json(["ab", "c"], 3), "ids": ids_json((1, 2))}
    assert list(parts_of(value)) == [b'{"text":"abc","ids":[1,2]}']


def test_no_block_is_long() -> None:
    pieces = [TEXT] * 20
    for value in (text_json(pieces, len(TEXT) * 20), ids_json(range(100, 900)), in_blocks(lambda: pieces, 1)):
        assert isinstance(value, Later)
        assert max(map(len, value)) <= 6 * len(TEXT) + 3, "a character has six bytes at most"


def test_items_are_asked_for_when_they_are_reached() -> None:
    asked: list[int] = []

    def items() -> Iterator[int]:
        for number in range(9):
            asked.append(number)
            yield number

    blocks = iter(in_blocks(items, 2))
    assert [next(blocks), next(blocks), asked] == [b"[", b"0,1", [0, 1]]


def test_parts_have_what_they_should_and_nothing_is_lost() -> None:
    rng = random.Random(3)
    for _ in range(50):
        found = [b"x" * rng.choice((0, 1, 1000, PART_BYTES - 1, PART_BYTES)) for _ in range(rng.randrange(30))]
        blocks, read = iter(found), list[bytes]()
        while part := next_part(blocks):
            read.append(part)
        assert b"".join(read) == b"".join(found)
        assert all(PART_BYTES <= len(part) < 2 * PART_BYTES for part in read[:-1]), "a block is a part at most"


@pytest.mark.parametrize(("most", "times"), [(6, 1), (5, 3)])
def test_what_is_told_again_is_encoded_once_unless_it_is_too_long(
    monkeypatch: pytest.MonkeyPatch, most: int, times: int
) -> None:
    monkeypatch.setattr(parts, "KEPT_BYTES", most)
    begun: list[None] = []

    def blocks() -> Iterator[bytes]:
        begun.append(None)
        yield from (b"ab", b"cd", b"ef")

    kept = Kept(blocks)
    half_read = iter(kept)
    next(half_read)
    assert [b"".join(kept) for _ in range(3)] == [b"abcdef"] * 3
    assert len(begun) == 1 + times, "what was read in part is not kept"


def test_a_value_that_is_no_json_is_our_own_fault() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        list(parts_of({"a": object()}))
