"""Long JSON in parts: values that may be long are encoded when they are sent, block by block.

At no time is all of an answer in memory as bytes, and no call encodes more than a part and a block.

    {"id":"cmpl-1","choices":  [{"index":0,"text":"...  ...","logprobs":{"tokens":[  ...  ]}}]  ,"usage":{...}}
     what is short: at once     what is Later: a block at a time, when it is reached
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import orjson

PART_BYTES: Final = 64 * 1024  # a part has at least so many, but for the last one, and less than one block more
TOKENS: Final = 32  # tokens with their log-probabilities in one block: with 20 likeliest ones some 60 KB
IDS: Final = 4096  # token ids in one block
CHARS: Final = 16 * 1024  # of a text in one block
TEXTS: Final = 1024  # pieces of a text that are joined at a time
KEPT_BYTES: Final = (
    8 * 1024 * 1024
)  # what is told several times is kept up to this length; what is longer is encoded anew
_PLACE: Final = b"\0"  # stands where a Later belongs; orjson writes this byte nowhere

Items = Callable[[], Iterable[Any]]


class Later:
    """A JSON value, or items of a list, that is encoded when it is read. `blocks`: begins to read it."""

    def __init__(self, blocks: Callable[[], Iterator[bytes]]) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[bytes]:
        return self._blocks()


class Kept(Later):
    """The same for what is told several times: it is encoded once, unless it has more than KEPT_BYTES."""

    _found: list[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        if self._found is not None:
            yield from self._found
            return

        pieces, num_bytes = list[bytes](), 0
        for block in super().__iter__():
            num_bytes += len(block)
            if num_bytes <= KEPT_BYTES:
                pieces.append(block)
            else:
                pieces.clear()
            yield block
        if num_bytes <= KEPT_BYTES:
            self._found = pieces


def parts_of(value: Any) -> Iterator[bytes]:
    """Encodes a value that may have Laters within it. What is around them is encoded at once."""
    laters: list[Later] = []

    def mark(entry: Any) -> orjson.Fragment:
        assert isinstance(entry, Later), f"no JSON: {type(entry).__name__}"
        laters.append(entry)
        return orjson.Fragment(_PLACE)

    first, *others = orjson.dumps(value, default=mark).split(_PLACE)
    yield first
    for later, after in zip(laters, others, strict=True):
        yield from later
        yield after


def items_of(items: Items, size: int) -> Iterator[bytes]:
    """Items of a list without its brackets, so many in a block."""
    rest, comma = iter(items()), b""
    while block := list(islice(rest, size)):
        yield comma + orjson.dumps(block)[1:-1]
        comma = b","


def list_of(groups: Sequence[Iterable[bytes]]) -> Later:
    """A list of all items of these groups, each as `items_of` has it."""

    def blocks() -> Iterator[bytes]:
        yield b"["
        is_empty = True
        for group in groups:
            for index, block in enumerate(group):
                yield b"," + block if index == 0 and not is_empty else block
                is_empty = False
        yield b"]"

    return Later(blocks)


def in_blocks(items: Items, size: int) -> Later:
    """A list of these items, so many in a block."""
    return list_of([Later(lambda: items_of(items, size))])


def list_with_laters(values: Items) -> Later:
    """A list of values that have Laters within them. A value is asked for when it is reached."""

    def blocks() -> Iterator[bytes]:
        yield b"["
        for index, value in enumerate(values()):
            yield b"," if index else b""
            yield from parts_of(value)
        yield b"]"

    return Later(blocks)


def text_json(texts: Sequence[str], num_chars: int) -> str | Later:
    """A text that consists of pieces, and has `num_chars` in all."""
    if len(texts) <= TEXTS and num_chars <= CHARS:
        return "".join(texts)

    def blocks() -> Iterator[bytes]:
        yield b'"'
        for start in range(0, len(texts), TEXTS):
            text = "".join(texts[start : start + TEXTS])  # copies nothing if it is one
            for begin in range(0, len(text), CHARS):
                yield orjson.dumps(text[begin : begin + CHARS])[1:-1]
        yield b'"'

    return Later(blocks)


def ids_json(token_ids: Sequence[int]) -> list[int] | Later:
    """A list of token ids."""
    if len(token_ids) <= IDS:
        return list(token_ids)
    return in_blocks(lambda: token_ids, IDS)


def next_part(blocks: Iterator[bytes]) -> bytes:
    """The next blocks, PART_BYTES at least. Fewer bytes are the last ones; none: nothing is left."""
    pieces, num_bytes = list[bytes](), 0
    for block in blocks:
        pieces.append(block)
        num_bytes += len(block)
        if num_bytes >= PART_BYTES:
            break
    return b"".join(pieces)


LEAST = -9999.0  # stands for minus infinity, which JSON does not have, as in OpenAI's API and vLLM


def finite(logprob: float) -> float:
    """The number for JSON."""
    return max(logprob, LEAST)
