"""Random context-free grammars, their text in Lark's and GBNF's spelling, and whether a text is one of their answers.

name: alternatives of parts          a part is a text, a class of characters, or a name; with "", "?", "*" or "+"
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

TEXTS: Final = ("a", "b", "ab", "aa", " ", "x", "(", ")", "é", '"', "\\", "1", "go on", "的", "\n")
CLASSES: Final = ("[a-c]", "[0-9]", "[a-z ]", "[^a]")
TIMES: Final = ("", "", "", "", "?", "*", "+")


@dataclass(frozen=True)
class Part:
    """`times`: how often it comes."""

    kind: Literal["text", "class", "name"]
    value: str
    times: str = ""


Rules = Mapping[str, Sequence[Sequence[Part]]]


def rules(rng: Random) -> Rules:
    """Rules of one of some shapes. The first one is where answers begin."""
    return rng.choice((_tangled, _tangled, _ambiguous, _deep, _wide))(rng)


def _tangled(rng: Random) -> Rules:
    """Rules that name one another at random, each with an alternative that names none."""
    names = ["start", *(f"r{place}" for place in range(rng.choice((0, 1, 3, 8, 30))))]
    return {
        name: [
            *([_part(rng, names) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(0, 3))),
            [_part(rng, ()) for _ in range(rng.randint(1, 3))],
        ]
        for name in names
    }


def _part(rng: Random, names: Sequence[str]) -> Part:
    times = rng.choice(TIMES)
    if names and rng.random() < 0.4:
        return Part("name", rng.choice(names), times)
    return Part("class", rng.choice(CLASSES), times) if rng.random() < 0.2 else Part("text", rng.choice(TEXTS), times)


def _ambiguous(rng: Random) -> Rules:
    """One rule that can be read in many ways."""
    own = Part("name", "start", "")
    alternatives = [[own] * rng.randint(2, 4) for _ in range(rng.randint(1, 3))]
    texts = [[Part("text", text, rng.choice(TIMES))] for text in rng.sample(("a", "aa", "aaa", "b", "ab"), 2)]
    return {"start": [*alternatives, *texts]}


def _deep(rng: Random) -> Rules:
    """A chain: each rule names the next one."""
    length = rng.choice((5, 50, 400, 1500))
    texts = [[Part("text", rng.choice("ab"))] if rng.random() < 60 / length else [] for _ in range(length)]
    names = ["start", *(f"r{place}" for place in range(1, length))]
    found: dict[str, Sequence[Sequence[Part]]] = {
        name: [[*text, Part("name", after)]] for name, after, text in zip(names, names[1:], texts, strict=False)
    }
    return {**found, names[-1]: [[Part("text", "end")]]}


def _wide(rng: Random) -> Rules:
    """Many alternatives that begin alike."""
    number = rng.choice((5, 50, 300))
    return {"start": [[Part("text", f"a{rng.randrange(number)}"), _part(rng, ())] for _ in range(number)]}


# ---- text ----


def as_lark(found: Rules) -> str:
    """In Lark's spelling."""
    return "\n".join(f"{name}: {_spelt(alternatives, lark=True)}" for name, alternatives in found.items())


def as_gbnf(found: Rules) -> str:
    """In GBNF's spelling, in which answers begin with `root`."""
    renamed = {"root" if name == "start" else name: alternatives for name, alternatives in found.items()}
    return "\n".join(f"{name} ::= {_spelt(alternatives, lark=False)}" for name, alternatives in renamed.items())


def _spelt(alternatives: Sequence[Sequence[Part]], *, lark: bool) -> str:
    return " | ".join(" ".join(_spelt_part(part, lark=lark) for part in each) or '""' for each in alternatives)


def _spelt_part(part: Part, *, lark: bool) -> str:
    if part.kind == "text":
        text = json.dumps(part.value, ensure_ascii=False)
    elif part.kind == "class":
        text = f"/{part.value}/" if lark else part.value
    else:
        text = "root" if part.value == "start" and not lark else part.value
    return text + part.times


# ---- membership ----

Ends = dict[str, set[int]]


def has(found: Rules, text: str) -> bool:
    """Whether `text` is an answer of the grammar: from the last character to the first, where each rule may end."""
    later: list[Ends] = [{} for _ in range(len(text) + 1)]
    for place in range(len(text), -1, -1):
        later[place] = {name: set() for name in found}
        while _grow(found, text, place, later):
            pass
    return len(text) in later[0][next(iter(found))]


def _grow(found: Rules, text: str, place: int, later: Sequence[Ends]) -> bool:
    """Adds ends of the rules that begin at `place`; whether there were more."""
    has_grown = False
    for name in reversed(list(found)):
        ends = {end for each in found[name] for end in _sequence(each, text, {place}, later)}
        has_grown |= not ends <= later[place][name]
        later[place][name] |= ends
    return has_grown


def _sequence(parts: Sequence[Part], text: str, places: set[int], later: Sequence[Ends]) -> set[int]:
    for part in parts:
        places = _repeated(part, text, places, later)
    return places


def _repeated(part: Part, text: str, places: set[int], later: Sequence[Ends]) -> set[int]:
    found = set(places) if part.times in ("?", "*") else set[int]()
    left = set(places)
    while left:
        after = {end for place in left for end in _once(part, text, place, later)}
        left = after - found if part.times in ("*", "+") else set()
        found |= after
    return found


def _once(part: Part, text: str, place: int, later: Sequence[Ends]) -> set[int]:
    if part.kind == "name":
        return later[place].get(part.value, set())
    if part.kind == "text":
        return {place + len(part.value)} if text.startswith(part.value, place) else set()
    return {place + 1} if re.fullmatch(part.value, text[place : place + 1]) else set()
