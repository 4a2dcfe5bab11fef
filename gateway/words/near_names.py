"""Which known name a client meant: of a field that has a letter wrong, of a path that lacks its /v1."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from functools import lru_cache
from itertools import takewhile

LEAST_LETTERS = 6  # one wrong letter in a shorter name makes another word: `top_a` is no misspelt `top_p`
MAX_NAME = 64  # characters; nobody misspells a longer name
MAX_PATH = 200
LIKENESS = 0.85  # of two paths, as difflib counts it
PREFIX = "/v1"


def near_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was meant to be, or None.

    Case, `_` and `-` do not count: `maxTokens` is `max_tokens`. In a name of LEAST_LETTERS or more, one letter may be
    wrong, missing, too many, or swapped with its neighbour: `max_tokns` is `max_tokens`.
    """
    if len(name) > MAX_NAME:
        return None
    letters = _letters(name)
    return next((candidate for candidate in known if _differ_by_one(letters, _letters(candidate))), None)


def near_path(path: str, known: Collection[str]) -> str | None:
    """The known path that `path` was meant to be, or None: with /v1 before it, without what comes before or twice, or
    spelt a little differently."""
    if len(path) > MAX_PATH:
        return None

    parts = [part for part in path.lower().split("/") if part]
    tails = ["/" + "/".join(parts[start:]) for start in range(len(parts))]
    candidates = [candidate for tail in tails for candidate in (tail, PREFIX + tail)]
    exact = next((candidate for candidate in candidates if candidate in known), None)
    if exact is not None:
        return exact

    return next(
        (near for candidate in candidates[:2] for near in get_close_matches(candidate, known, 1, LIKENESS)), None
    )


@lru_cache(1024)
def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _differ_by_one(one: str, other: str) -> bool:
    """Whether two names are equal but for one letter at most; short ones have to be equal."""
    if one == other or len(other) < LEAST_LETTERS or abs(len(one) - len(other)) > 1:
        return one == other

    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    a, b = one[same:], other[same:]
    is_swapped = a[:2] == b[1::-1] and a[2:] == b[2:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or is_swapped
