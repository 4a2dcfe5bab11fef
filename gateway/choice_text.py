"""Turns the tokens of one choice into text: detokenizer first, then stop strings. One piece for each token. Pure.

What may begin a stop string is held back, and the text is cut before the first match. The stop string that is complete
first wins; of several that end at one character, the longest. So the result does not depend on how the text was cut
into pieces. The method is Aho and Corasick's (1975): a tree of all stop strings, where each node falls back to the
longest proper suffix of its text that is also a node. A character takes constant time.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from gateway.detokenizer import Detokenizer
from protocol.request import FinishReason

ROOT = 0
NO_STEP = -1


class StopSet:
    """The stop strings of one request as an automaton. It never changes; all choices share it.

    A node stands for a text that begins some stop string. Most nodes have one child, and that child is the next node:
    `_step_to[node]` is the code point that leads from `node - 1` to `node`. Other children are in `_branches`.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        assert all(strings), "an empty stop string"
        self.strings = tuple(strings)
        self._step_to = array("i", [NO_STEP, NO_STEP])  # one entry more than nodes
        self._branches: dict[tuple[int, int], int] = {}  # (node, code point) to child
        self._fallbacks = array("i", [ROOT])
        self.depths = array("i", [0])  # characters of each node's text
        self.match_lengths = array("i", [0])  # of the longest stop string that ends at the node; 0: none
        parents = [ROOT]
        for string in strings:
            self._add(string, parents)
        self._link(parents)

    def next(self, node: int, char: str) -> int:
        """The node of the longest suffix of (the text of `node`, then `char`) that begins a stop string."""
        code = ord(char)
        while (child := self._child(node, code)) == NO_STEP:
            if node == ROOT:
                return ROOT
            node = self._fallbacks[node]
        return child

    def _child(self, node: int, code: int) -> int:
        if self._step_to[node + 1] == code:
            return node + 1
        return self._branches.get((node, code), NO_STEP)

    def _add(self, string: str, parents: list[int]) -> None:
        """Adds the nodes of one string, without fallbacks. Appends the parent of each to `parents`."""
        node = ROOT
        for char in string:
            code = ord(char)
            child = self._child(node, code)

            if child == NO_STEP:
                child = len(self.depths)
                if child == node + 1:
                    self._step_to[child] = code
                else:
                    self._branches[node, code] = child
                self._step_to.append(NO_STEP)
                parents.append(node)
                self.depths.append(self.depths[node] + 1)
                self._fallbacks.append(ROOT)
                self.match_lengths.append(0)

            node = child

        self.match_lengths[node] = len(string)

    def _link(self, parents: list[int]) -> None:
        """Sets the fallback of each node. Shorter texts come first, because a fallback is shorter than its node."""
        codes = list(self._step_to)
        for (_, code), child in self._branches.items():
            codes[child] = code
        for node in sorted(range(1, len(self.depths)), key=self.depths.__getitem__):
            if self.depths[node] > 1:
                fallback = self.next(self._fallbacks[parents[node]], chr(codes[node]))
                self._fallbacks[node] = fallback
                self.match_lengths[node] = self.match_lengths[node] or self.match_lengths[fallback]


class StopStrings:
    """Scans one choice's text. Do not feed text after a match."""

    def __init__(self, stops: StopSet) -> None:
        self._stops = stops
        self._node = ROOT
        self._held = ""  # the text of the node
        self.has_matched = False

    def feed(self, text: str) -> str:
        """The text that may be shown now. Sets `has_matched` when a stop string is complete."""
        assert not self.has_matched, "text after a stop string"
        stops, node = self._stops, self._node
        if not stops.strings:
            return text

        for place, char in enumerate(text, start=len(self._held) + 1):
            node = stops.next(node, char)
            if stops.match_lengths[node]:
                self.has_matched = True
                shown, self._held = (self._held + text)[: place - stops.match_lengths[node]], ""
                return shown

        self._node, text = node, self._held + text
        num_shown = len(text) - stops.depths[node]
        self._held = text[num_shown:]
        return text[:num_shown]

    def flush(self) -> str:
        """The text held back, when the text has ended without a match."""
        held, self._held = self._held, ""
        return held


class Piece(NamedTuple):
    """What one token adds. `text` is empty while a character is incomplete or may begin a stop string."""

    text: str
    token_id: int | None  # None: no token, only a finish reason
    finish_reason: str | None


class ChoiceText:
    """Turns tokens of one choice into pieces, in order. Do not feed anything after a finish."""

    def __init__(self, detokenizer: Detokenizer, stops: StopSet, min_tokens: int) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._has_stops = bool(stops.strings)
        self._min_tokens = min_tokens
        self.num_tokens = 0
        self.finish_reason: str | None = None

    @property
    def hit_stop_string(self) -> bool:
        """Whether a stop string cut the text. The worker must then be told to stop."""
        return self._stops.has_matched

    def feed(self, token_ids: Sequence[int], finish: FinishReason | None) -> list[Piece]:
        """The pieces of `token_ids`, up to a stop string. The stop token that ended the choice has no text."""
        if finish is None and len(token_ids) == 1 and not self._has_stops:  # nearly every call
            self.num_tokens += 1
            return [Piece(self._detokenizer.feed(token_ids[0]), token_ids[0], None)]

        if not token_ids and finish is not None:
            return [self._piece(self._detokenizer.flush(), None, finish)]

        pieces: list[Piece] = []
        last = len(token_ids) - 1

        for place, token_id in enumerate(token_ids):
            ends = finish if place == last else None
            self.num_tokens += 1
            text = "" if ends is FinishReason.STOP else self._detokenizer.feed(token_id)
            if ends is not None:
                text += self._detokenizer.flush()
            pieces.append(self._piece(text, token_id, ends))
            if self.finish_reason is not None:
                break

        return pieces

    def _piece(self, text: str, token_id: int | None, ends: FinishReason | None) -> Piece:
        if self.num_tokens >= self._min_tokens:
            text = self._stops.feed(text)
        if self.hit_stop_string:
            self.finish_reason = "stop"
        elif ends is not None:
            self.finish_reason = str(ends)
            text += self._stops.flush()
        return Piece(text, token_id, self.finish_reason)
