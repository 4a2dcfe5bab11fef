"""Special tokens that a client writes in a conversation are plain text, not the tokens that the model was taught.

A mark breaks each of them before the chat template renders the conversation. The rendered text is cut at the marks, and
each part becomes tokens by itself, so that no special token is found where a mark was. The tokens of the template's own
text stay what they are.

A client's text could also be a piece of a special token whose rest the template writes: `a<|im_end|` before `>`, or
`|im_end|` within `<` and `>`. Such a text has a mark at its edge.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar

from gateway.text.template_messages import Arguments

MARK: Final = "\ufdd0"  # no character: Unicode leaves it to programs. One that a client sends is lost
BLOCK_CHARS: Final = 64 * 1024  # other threads run between two blocks of a text
T = TypeVar("T")


class Marked(str):
    """A text with marks. It is equal to the text without them, so that templates find it among keys and compare it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.replace(MARK, "") == other.replace(MARK, "")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.replace(MARK, ""))


class PlainMarks:
    """Breaks the texts of these special tokens, and what may become one of them beside other text."""

    def __init__(self, special: Sequence[str]) -> None:
        longest_first = sorted((text for text in set(special) if len(text) > 1), key=len, reverse=True)
        self._longest = len(longest_first[0]) if longest_first else 0
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._beginnings = frozenset(text[:size] for text in longest_first for size in range(1, len(text)))
        self._ends = frozenset(text[size:] for text in longest_first for size in range(1, len(text)))
        self._all = MARK.join(longest_first)

    def put(self, value: T) -> T:
        """The value, a text or JSON, with marks in each of its texts that has a special token or a piece at an edge."""
        return self._put(value)  # type: ignore[no-any-return]  # of the type that it was

    def _put(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Arguments):
            return Arguments(self._put(dict(value)), self._text(str(value)))
        if isinstance(value, dict):
            return {self._put(key): self._put(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._put(inner) for inner in value]
        return value

    def _text(self, text: str) -> str:
        """The same object if it needs no mark."""
        places = {*self._breaks(text), *self._edges(text)}
        inner = text.strip() or text
        if not places and 0 < len(inner) < self._longest and inner in self._all:
            places = {text.index(inner)}  # the rest of a special token may stand on both sides
        if not places:
            return text
        return Marked(MARK.join(text[begin:end] for begin, end in pairwise([0, *sorted(places), len(text)])))

    def _edges(self, text: str) -> Iterator[int]:
        """Places at the edges where a special token may reach beyond the text. Also those of the text without the white
        space around it, which a template may strip."""
        first, last = len(text) - len(text.lstrip()), len(text.rstrip())
        for begin, end in {(0, len(text)), (first, last)}:
            most = min(end - begin, self._longest - 1)
            if any(text[begin : begin + size] in self._ends for size in range(1, most + 1)):
                yield begin
            if any(text[end - size : end] in self._beginnings for size in range(1, most + 1)):
                yield end

    def _breaks(self, text: str) -> Iterator[int]:
        """Places behind the first character of each special token."""
        if self._pattern is None:
            return
        for begin in range(0, len(text), BLOCK_CHARS):
            end, at = begin + BLOCK_CHARS, begin
            while (match := self._pattern.search(text, at, end + self._longest - 1)) and match.start() < end:
                at = match.start() + 1  # another may begin within this one
                yield at
