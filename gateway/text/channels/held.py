"""Where the end of a text may become one of some tags, so that it is to be held until more text comes. Pure."""

import re
from collections.abc import Iterable


def beginnings(tags: Iterable[str]) -> str:
    """A pattern of all proper beginnings of tags, the longest first."""
    parts = {tag[:end] for tag in tags for end in range(1, len(tag))}
    return "|".join(map(re.escape, sorted(parts, key=len, reverse=True))) or "(?!)"


class Ends:
    """Finds where the part of a text begins that is to be held: one that `pattern` matches up to the text's end."""

    def __init__(self, pattern: str, most: int) -> None:
        self._pattern = re.compile(f"(?:{pattern})\\Z")
        self._most = most  # characters that it can match

    def begin(self, text: str, start: int) -> int:
        """Where it begins, at `start` or behind it; the text's length, if nothing is to be held."""
        matched = self._pattern.search(text, max(start, len(text) - self._most))
        return len(text) if matched is None else matched.start()
