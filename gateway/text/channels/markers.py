"""The markers of a format for one tokenizer: those that are one token each, and those that are found in text. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from gateway.text.channels.held import Ends, beginnings
from gateway.text.channels.readers import Format


class Markers:
    """The markers of a format. It never changes; all choices share it.

    A marker that is one token counts by its id alone: the same letters as other tokens are plain text.
    """

    def __init__(self, form: Format, token_id: Callable[[str], int | None]) -> None:
        """`token_id`: the id of the special token with this text; None: there is none."""
        ids = {marker: token_id(marker) for marker in form.markers}
        in_text = [marker for marker, found in ids.items() if found is None]
        self.format = form
        self.by_id: Mapping[int, str] = MappingProxyType({i: marker for marker, i in ids.items() if i is not None})
        self.in_text = tuple(in_text)
        self.pattern = re.compile("|".join(map(re.escape, in_text)) or "(?!)")
        self.held = Ends(beginnings(in_text), max(map(len, in_text), default=0))

    def is_reasoning_open(self, prompt: str) -> bool:
        """Whether an answer to this prompt begins with thoughts: a marker at the prompt's end has opened them. Markers
        elsewhere do not count, because a user may have written them."""
        tags, text = self.format.reasoning, prompt.rstrip()
        if tags is None:
            return False
        return text.endswith(tags.opening) or (tags.is_assumed and not text.endswith(tags.closing))


class TextMarkers:
    """Finds the markers without an id in the text of one choice, however it is cut."""

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self._held = ""  # may begin a marker

    def split(self, text: str) -> Iterator[tuple[str, str]]:
        """Text and the marker behind it, in order. The last one has no marker."""
        if not self._markers.in_text:
            yield text, ""
            return

        text, at = self._held + text, 0
        for matched in self._markers.pattern.finditer(text):
            yield text[at : matched.start()], matched.group()
            at = matched.end()
        held = self._markers.held.begin(text, at)
        self._held = text[held:]
        yield text[at:held], ""

    def end(self) -> str:
        """The text held back: no marker follows, or one with an id does."""
        held, self._held = self._held, ""
        return held
