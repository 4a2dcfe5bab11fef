"""Finds the name that a user probably meant who typed another. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches

from protocol.brief import SHOWN_CHARS

_LETTERS_AN_EDIT = 4  # one edit in this many letters is a slip; shorter names may have one too


def nearest_name(typed: str, names: Iterable[str], least: float = 0.6) -> str | None:
    """The name within a few edits of `typed`. If there is none, the most similar name, if its similarity is at least
    `least` (0 to 1). None if no name is similar."""
    typed, known = typed[:SHOWN_CHARS], list(dict.fromkeys(names))
    edits = {name: num_edits(typed, name) for name in known}
    best = min(known, key=lambda name: edits[name], default="")
    if best and edits[best] <= max(1, len(typed.strip("-")) // _LETTERS_AN_EDIT):
        return best
    near = get_close_matches(typed, known, n=1, cutoff=least)
    return near[0] if near else None


def num_edits(one: str, other: str) -> int:
    """The number of letters to add, drop, change or swap with a neighbour, to turn one word into the other. This is the
    optimal string alignment distance: no letter is edited twice."""
    above: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        two_above, above, row = above, row, [i]
        for j, wanted in enumerate(other, 1):
            least = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                least = min(least, two_above[j - 2] + 1)
            row.append(least)
    return row[-1]
