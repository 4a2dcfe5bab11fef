"""Stop strings in a stream of text: holds back what may be the start of one, cuts the text before the first.

First means: the one that is complete first; of those that end at the same character, the longest. So the result does
not depend on how the text was cut into pieces. Pure. What it does not know: tokens.
"""

from collections.abc import Sequence


class StopStrings:
    """Scans one choice's text. After a match nothing more may be fed."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string"
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """What may be shown of the text so far and was not yet; sets `matched` when a stop string is complete."""
        assert self.matched is None, "text after a stop string"
        if not self._stops:
            return text
        text = self._held + text
        found = self._first_match(text)
        if found is not None:
            start, self.matched = found
            self._held = ""
            return text[:start]
        keep = self._num_held(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back: the text has ended without a match."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None  # end, start, stop string
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return (best[1], best[2]) if best is not None else None

    def _num_held(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
