"""Whether a text is an answer of a random grammar: as the library for grammars says, in both spellings."""

import json
from random import Random

from gateway.words.request import Grammar
from tests.byte_grammars import allows, check
from tests.fuzz.served.rules import Part, Rules, as_gbnf, as_lark, has, rules

LETTERS = {"[a-c]": "abc", "[0-9]": "07", "[a-z ]": "m ", "[^a]": "b)"}  # some of each class


def derived(rng: Random, found: Rules, name: str, depth: int = 12) -> str:
    """An answer; where it is deep, by the last alternative of each rule."""
    alternatives = found[name] if depth > 0 else found[name][-1:]
    return "".join(_of_part(rng, found, part, depth) for part in rng.choice(alternatives))


def _of_part(rng: Random, found: Rules, part: Part, depth: int) -> str:
    times = rng.choice({"": (1,), "?": (0, 1), "*": (0, 1, 2), "+": (1, 2)}[part.times])
    if part.kind == "text":
        return part.value * times
    if part.kind == "class":
        return "".join(rng.choice(LETTERS[part.value]) for _ in range(times))
    return "".join(derived(rng, found, part.value, depth - 1) for _ in range(times))


def test_answers_that_a_grammar_derives_are_its_answers() -> None:
    num_seen = 0
    for seed in range(150):
        rng = Random(seed)
        found = rules(rng)
        if len(found) > 100:
            continue
        for _ in range(3):
            text = derived(rng, found, "start")
            if len(text) < 40:
                num_seen += 1
                assert has(found, text), (seed, text)
    assert num_seen > 200


def test_what_the_library_allows_is_an_answer() -> None:
    """The library cuts a text into the longest words first, so that it allows less here and there."""
    seen = {True: 0, False: 0}
    for seed in range(60):
        rng = Random(seed)
        found = rules(rng)
        if len(found) > 20 or sum(map(len, found.values())) > 60:
            continue
        for spelling in (as_lark, as_gbnf):
            text = check(Grammar("ebnf", spelling(found)))
            if not isinstance(text, str):
                continue
            for _ in range(6):
                answer = derived(rng, found, "start", 3)[:25]
                if rng.random() < 0.5:
                    place = rng.randint(0, len(answer))
                    answer = answer[:place] + rng.choice("ab1") + answer[place + 1 :]
                is_allowed = allows(text, answer)
                assert has(found, answer) or not is_allowed, (seed, spelling(found), answer)
                seen[is_allowed] += 1
    assert min(seen.values()) > 50, seen


def test_texts_in_a_grammar_are_spelt_as_json() -> None:
    found: Rules = {"start": [[Part("text", '"', "+"), Part("name", "start", "?")], []]}
    assert as_lark(found) == f'start: {json.dumps(chr(34))}+ start? | ""'
    assert as_gbnf(found) == f'root ::= {json.dumps(chr(34))}+ root? | ""'
    assert has(found, "") and has(found, '""') and not has(found, "a")
