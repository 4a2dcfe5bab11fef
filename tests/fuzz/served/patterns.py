"""Random regular expressions, and whether Python's `re` reads one as the library for grammars does."""

import re
from random import Random
from typing import Final

LETTERS: Final = 'abcxyz0189 _-,:é的"/'
CLASSES: Final = ("[a-z]", "[0-9]", "[A-Za-z0-9 ]", "[^a]", "[^a-y]", "[abc]", r"\d", ".", '[^"]', r"[^\\]")
# What dialects read in their own way, or what no grammar can follow.
ODD: Final = (
    *(r"\w", r"\s", r"\S", r"\W", r"\b", r"\B", "^", "$", r"\p{L}", r"\P{Nd}", r"\x41", r"\u0041", r"\u{1F600}"),
    *("[[:alpha:]]", "[[:digit:]a]", "[a&&b]", "[\\w--a]", "[]", "(?i)a", "(?:a)", "(?P<n>a)", "(?=a)"),
    *("(?<!a)", "(?!b).", r"\1", "a*?", "a++", "(?>a)", "{", "}", "]", "a{,3}", "a{3", "a{0}", "a{2,1}", "a{1000}"),
    *(r"[\x00-\x1f]", r"[^\x00-\x1f]", r"[\x00-\x7f]", r"\x01", r"\v", r"[\v]", r"[^\S\n]", r"\P{P}", "[]a]", "[^]"),
    *(r"\0", r"\cA", r"\Z", r"\z", r"\A", r"\R", r"\h", r"\Q.\E", "(?#c)", "(?s).", "(?x) a", "\n", "\t", "\x7f"),
)
REPEATS: Final = ("*", "+", "?", "{1}", "{0,2}", "{2,5}", "{3,}", "{0,40}", "{17}")
_COMMON: Final = re.compile(
    r"(?:[A-Za-z0-9 _,:;@#%=!\"'<>/é的-]|\\[dn.*+?()\[\]{}|\\^$-]|[.|*+?)]|\((?!\?)|\{[0-9]{1,3}(?:,[0-9]{0,3})?\}"
    r"|\[\^?(?:[A-Za-z0-9 \"](?:-[A-Za-z0-9])?)+\]|\[\^\\\\\])*"
)
_TWO_REPEATS: Final = re.compile(r"(?<!\\)[*+?}][*+?{]")


def pattern(rng: Random, depth: int = 3, odd: float = 0.05) -> str:
    """A pattern. `odd`: how often a part of it is one of ODD."""
    parts = [_part(rng, depth, odd) for _ in range(rng.randint(1, 4))]
    return "".join(parts)


def _part(rng: Random, depth: int, odd: float) -> str:
    if rng.random() < odd:
        return rng.choice(ODD)
    choice = rng.random()
    if depth == 0 or choice < 0.35:
        found = rng.choice(LETTERS)
    elif choice < 0.65:
        found = rng.choice(CLASSES)
    else:
        found = "(" + "|".join(pattern(rng, depth - 1, odd) for _ in range(rng.randint(1, 3))) + ")"
    return found + rng.choice(REPEATS) if rng.random() < 0.3 else found


def is_common(found: str) -> bool:
    """Whether the pattern has only parts that mean the same in Python's `re` and in the library's dialect."""
    if not _COMMON.fullmatch(found) or _TWO_REPEATS.search(found):
        return False
    try:
        re.compile(found)
    except (re.error, OverflowError, RecursionError):
        return False
    return True
