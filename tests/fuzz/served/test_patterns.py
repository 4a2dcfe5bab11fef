"""Patterns that two dialects read alike are told from others."""

import re
from random import Random

import pytest

from gateway.words.request import Grammar
from tests.byte_grammars import allows, check
from tests.fuzz.served.patterns import ODD, is_common, pattern


@pytest.mark.parametrize("odd", [each for each in ODD if each not in ("{", "}", "a{0}", "a{1000}")])
def test_what_dialects_read_differently_is_not_common(odd: str) -> None:
    assert not is_common(odd) and not is_common(f"x{odd}y")


@pytest.mark.parametrize("found", ["a{3", "[a-", "(", "a**", "a*+", "a{2}{3}", "(?i)a", "a{5,2}", "\\w", "^a"])
def test_what_is_no_pattern_or_repeats_a_repeat_is_not_common(found: str) -> None:
    assert not is_common(found)


def test_the_library_matches_common_patterns_as_python_does() -> None:
    seen = {True: 0, False: 0}
    for seed in range(150):
        rng = Random(seed)
        found = pattern(rng, 2, 0)
        assert is_common(found), found
        text = check(Grammar("regex", found))
        if not isinstance(text, str):
            continue
        for _ in range(8):
            answer = "".join(rng.choice("abcxyz019 _é的") for _ in range(rng.randint(0, 4)))
            is_allowed = allows(text, answer)
            assert is_allowed == bool(re.fullmatch(found, answer)), (found, answer)
            seen[is_allowed] += 1
    assert min(seen.values()) > 30, seen
