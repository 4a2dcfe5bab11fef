from typing import Any

import numpy as np
import pytest

from gateway.generation.grammars.trials import MAX_CALL_S, MAX_STEPS, PICKS, WALKS_S, Trials
from gateway.words.request import Grammar
from protocol.errors import BadRequest
from runtime.grammars import Matching
from runtime.vocabulary import Vocabulary
from tests.byte_grammars import VOCABULARY
from tests.doubles.clock import VirtualClock


class Working:
    """A clock of work, which `steps` moves on at each look; the last one goes on."""

    def __init__(self, *steps: float) -> None:
        self._steps, self._now, self.num_looks = list(steps), 0.0, 0

    def now(self) -> float:
        self.num_looks += 1
        self._now += self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        return self._now


def tried(source: str, vocabulary: Vocabulary = VOCABULARY, clock: Any = None) -> str | BadRequest:
    return Trials(vocabulary, clock or VirtualClock()).of(Grammar("ebnf", source))


def why(found: str | BadRequest) -> str:
    assert isinstance(found, BadRequest), found
    assert found.param == "shape" and "\n" not in found.message
    return found.message


@pytest.mark.parametrize("source", ['start: "a"', 'start: "b"*', r"start: /(ab|cd)+/", 'start: "a" start | "b"'])
def test_a_grammar_that_answers_can_follow_gets_its_text(source: str) -> None:
    assert tried(source) == source


def test_a_grammar_without_any_answer_is_refused() -> None:
    assert "nothing may follow" in why(tried(r"start: /[^\s\S]/"))


@pytest.mark.parametrize("depth", [1, 5, 20])
def test_an_answer_that_cannot_go_on_is_found_and_shown(depth: int) -> None:
    """Behind `depth` letters of one rule comes a text that fits two patterns with nothing in common."""
    told = why(tried(f"start: /a{{{depth}}}/ MORE\nMORE: /[bc]+/ & /[de]+/"))
    assert "cannot be followed: " in told


def test_tokens_that_the_vocabulary_lacks_are_missed() -> None:
    """Only the model's own tokens make answers: without one for `b`, none can end."""
    without = Vocabulary([token if token != b"b" else b"" for token in VOCABULARY.tokens], frozenset({98}))
    assert isinstance(tried('start: "a" "b"'), str)
    assert "behind 'a', " in why(tried('start: "a" "b"', without))


def test_rows_of_the_parser_that_grow_too_long_are_found_by_walking() -> None:
    many = " | ".join(f"r{place}" for place in range(3000))
    rules = "\n".join(f'r{place}: "a" "b" r{place}' for place in range(3000))
    assert "items" in why(tried(f'start: "x" ({many})\n{rules}'))


def test_a_token_that_takes_too_much_work_is_refused_with_both_numbers() -> None:
    assert isinstance(tried('start: "abc"', clock=Working(MAX_CALL_S / 2)), str)
    told = why(tried('start: "abc"', clock=Working(0, 0, 2 * MAX_CALL_S)))
    assert f"one token takes {2 * MAX_CALL_S:.2f} s of work, expected at most {MAX_CALL_S:g} s" in told


def test_work_of_a_read_counts_like_that_of_a_mask() -> None:
    told = why(tried('start: "abc"', clock=Working(0, 0, 0, 0, 2 * MAX_CALL_S)))
    assert "behind 'a' one token takes" in told


def test_walks_end_after_so_many_tokens_and_so_much_work() -> None:
    quick, slow = Working(0), Working(WALKS_S / MAX_STEPS)
    for clock, num_walks in ((quick, len(PICKS)), (slow, 1)):
        assert isinstance(tried('start: "a"*', clock=clock), str)
        assert clock.num_looks == 1 + num_walks * (4 * MAX_STEPS + 1)


def test_walks_draw_among_all_tokens_the_longest_and_the_shortest() -> None:
    lengths = np.array([3, 1, 2, 3])
    assert [pick(lengths).tolist() for pick in PICKS] == [
        [True, True, True, True],
        [True, False, False, True],
        [False, True, False, False],
    ]


def test_the_same_grammar_is_walked_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal does not depend on luck."""
    seen: list[list[int]] = []
    read = Matching.read

    def noted(matching: Matching, tokens: list[int]) -> None:
        seen[-1] += tokens
        read(matching, tokens)

    monkeypatch.setattr(Matching, "read", noted)
    for _ in range(2):
        seen.append([])
        assert isinstance(tried(r"start: /[a-z]{9}/"), str)
    assert seen[0] == seen[1] and len(set(seen[0])) > 3
