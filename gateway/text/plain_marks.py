"""Special tokens that a client writes in a conversation are plain text, not the tokens that the model was taught.

A mark breaks each of them before the chat template renders the conversation. The rendered text is cut at the marks, and
each part becomes tokens by itself, so that no special token is found where a mark was. The tokens of the template's own
text stay what they are.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar

from gateway.text.template_messages import Arguments

MARK: Final = "\ufdd0"  # no character: Unicode leaves it to programs. One that a client sends is lost
BLOCK_CHARS: Final = 64 * 1024  # other threads run between two blocks of a text
T = TypeVar("T")


class PlainMarks:
    """Breaks the texts of these special tokens."""

    def __init__(self, special: Sequence[str]) -> None:
        longest_first = sorted((text for text in set(special) if len(text) > 1), key=len, reverse=True)
        self._longest, self._shortest = (len(longest_first[0]), len(longest_first[-1])) if longest_first else (0, 0)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def put(self, value: T) -> T:
        """The value, a text or JSON, with a mark in each special token that one of its texts has."""
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
        """The same object if it has no special token."""
        if len(text) < self._shortest:
            return text
        cuts = [0, *self._breaks(text), len(text)]
        if len(cuts) == 2:
            return text
        return MARK.join(text[begin:end] for begin, end in pairwise(cuts))

    def _breaks(self, text: str) -> Iterator[int]:
        """Places behind the first character of each special token."""
        if self._pattern is None:
            return
        for begin in range(0, len(text), BLOCK_CHARS):
            end, at = begin + BLOCK_CHARS, begin
            while (match := self._pattern.search(text, at, end + self._longest - 1)) and match.start() < end:
                at = match.start() + 1  # another may begin within this one
                yield at
