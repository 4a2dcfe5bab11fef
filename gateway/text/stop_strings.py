"""Finds stop strings in the text of a choice, however the text was cut into pieces. Pure.

What may begin a stop string is held back, and the text is cut before the first match. The stop string that is complete
first wins; of several that end at one character, the longest. What completes before the choice may stop is read and
shown: a stop string counts that ends later, also one that has begun before.
"""

from array import array
from collections.abc import Sequence

ROOT = 0
NO_STEP = -1
HIDDEN = "\udfff"  # stands for a character that is read but not shown; half a surrogate pair is in no decoded text


class StopSet:
    """The stop strings of one request as an automaton. It never changes; all choices share it.

    The method is Aho and Corasick's (1975): a tree of all stop strings, where each node falls back to the longest
    proper suffix of its text that is also a node. A character takes constant time.

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
        self.open_lengths = array("i", [0])  # characters at the end of each node's text that more text may complete
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
                self.open_lengths.append(0)

            node = child

        self.match_lengths[node] = len(string)

    def _link(self, parents: list[int]) -> None:
        """Sets the fallback of each node, and what follows from it. Shorter texts come first, because a fallback is
        shorter than its node."""
        codes, inner = list(self._step_to), set(parents)
        for (_, code), child in self._branches.items():
            codes[child] = code
        for node in sorted(range(1, len(self.depths)), key=self.depths.__getitem__):
            if self.depths[node] > 1:
                fallback = self.next(self._fallbacks[parents[node]], chr(codes[node]))
                self._fallbacks[node] = fallback
                self.match_lengths[node] = self.match_lengths[node] or self.match_lengths[fallback]
            fallback = self._fallbacks[node]
            self.open_lengths[node] = self.depths[node] if node in inner else self.open_lengths[fallback]


class StopStrings:
    """Scans one choice's text. Do not read text after a match."""

    def __init__(self, stops: StopSet) -> None:
        self._stops = stops
        self._node = ROOT
        self._held = ""  # the end of the text that was read, of which nothing is shown yet
        self._shown_as = ""  # the same with HIDDEN for each character that is not to be shown
        self.matched: str | None = None  # the string that has ended the text

    def feed(self, text: str, *, may_stop: bool = True, is_hidden: bool = False) -> str:
        """The text that may be shown now. Sets `matched` when a stop string is complete, if the choice `may_stop`.
        `is_hidden`: stop strings are found in this text, but it is not shown."""
        assert self.matched is None, "text after a stop string"
        stops, node = self._stops, self._node
        if not stops.strings:
            return "" if is_hidden else text

        num_held = len(self._held)
        self._held += text
        self._shown_as += HIDDEN * len(text) if is_hidden else text
        for end, char in enumerate(text, start=num_held + 1):
            node = stops.next(node, char)
            if may_stop and stops.match_lengths[node]:
                begin = end - stops.match_lengths[node]
                self.matched = self._held[begin:end]
                return self._release(begin)

        self._node = node
        return self._release(len(self._held) - stops.open_lengths[node])

    def flush(self) -> str:
        """The text held back, when the text has ended without a match. Text that follows is another one."""
        self._node = ROOT
        return "" if self.matched is not None else self._release(len(self._held))

    def _release(self, num_chars: int) -> str:
        """The first characters of those held back, without the hidden ones. The others are held back further on."""
        shown = self._shown_as[:num_chars].replace(HIDDEN, "")
        self._held, self._shown_as = self._held[num_chars:], self._shown_as[num_chars:]
        return shown
