"""Walks of tokens end, and where nothing may follow they say so."""

from random import Random

import pytest

from runtime.grammars import compile_grammar
from tests.byte_grammars import VOCABULARY
from tests.fuzz.walks.walking import STYLES, Walk, Walker

EOS = 1  # of the bytes, one that no answer here has


def walks(grammar: str, seeds: int = 20) -> list[Walk]:
    walker = Walker(VOCABULARY, EOS)
    compiled = compile_grammar(grammar, VOCABULARY)
    return [walker.walk(compiled, style, Random(seed)) for style in STYLES for seed in range(seeds)]


def test_answers_are_those_of_the_grammar_and_end() -> None:
    found = walks('start: "[" ("a" | "b")* "]"')
    assert all(each.has_ended and not each.fault for each in found)
    assert all(set(each.answer[1:-1]) <= set(b"ab") and each.answer[-1:] == b"]" for each in found)
    lengths = {
        style.name: sum(len(each.answer) for each in found[20 * place : 20 * place + 20])
        for place, style in enumerate(STYLES)
    }
    assert all(lengths["short"] < 0.75 * lengths[style.name] for style in STYLES if style.num_free)


def test_one_style_goes_on_where_a_comma_may_follow() -> None:
    found = walks('start: "[" "a" ("," "a")* "]"')
    commas = {
        style.name: sum(each.answer.count(b",") for each in found[20 * place : 20 * place + 20])
        for place, style in enumerate(STYLES)
    }
    assert commas["short"] < 20 and commas["commas"] > 400


@pytest.mark.parametrize("grammar", ['start: "ab" TEXT\nTEXT: /c/ & /d/', r'start: "ab" /[^\s\S]/'])
def test_an_answer_that_cannot_go_on_is_told(grammar: str) -> None:
    for each in walks(grammar):
        assert each.fault and not each.has_ended and b"ab".startswith(each.answer[:2])


def test_a_walk_that_cannot_end_is_too_long() -> None:
    found = walks("start: /a{1000}/", 1)
    assert all(not each.has_ended and not each.fault and set(each.answer) == set(b"a") for each in found)
