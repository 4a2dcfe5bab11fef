"""Which masks are made within a launch, and what an answer may take."""

from collections.abc import Sequence

import pytest
import torch

from runtime.grammars import CompiledGrammar, compile_grammar
from scheduler.execution.answers import (
    BASE_S,
    LAUNCH_S,
    MAX_UNREAD,
    MOST_S,
    PER_TOKEN_S,
    QUICK_S,
    Answer,
    Masking,
)
from scheduler.execution.grammars import Inline
from tests.grammars import grammar_of, text_named, vocabulary

NUM_TOKENS, EOS, A = 100, 99, 1
CHUNK_ROWS = 1


class Work:
    """A clock of work: each mask takes the next of `times`, and the last one again and again."""

    def __init__(self, *times: float) -> None:
        self.times, self._looks, self._now = times, 0, 0.0
        self.num_masks = 0

    def now(self) -> float:
        self._looks += 1
        if self._looks % 2 == 0:
            self._now += self.times[min(self.num_masks, len(self.times) - 1)]
            self.num_masks += 1
        return self._now


def compiled(length: int = 400) -> CompiledGrammar:
    return compile_grammar(text_named(grammar_of([(A,) * length])), vocabulary(NUM_TOKENS))


def answer(outputs: Sequence[int] = (), of: CompiledGrammar | None = None) -> Answer:
    return Answer((of or compiled()).begin((EOS,)), list(outputs))


def made(answers: Sequence[Answer], work: Work, first_row: int = 0, num_threads: int = 1) -> Masking:
    num_words = vocabulary(NUM_TOKENS).num_words
    masking = Masking(dict(enumerate(answers)), first_row, None, work, num_words, num_threads)
    masking.start(Inline(), lambda: None)
    assert masking.is_done
    return masking


def allows_some(masking: Masking) -> list[bool]:
    _, words_NW = masking.allowed(lambda place: place, torch.device("cpu"))
    return [bool(words_W.any()) for words_W in words_NW]


def test_the_first_mask_of_a_grammar_is_made_once_for_all_answers() -> None:
    grammar = compiled()
    answers = [answer(of=grammar) for _ in range(3)]
    for each in answers:
        assert each.matching.has_mask and each.fits(spent_s=1000.0)
        each.matching.matcher = None  # type: ignore[assignment]  # nothing asks it
    assert allows_some(made(answers, Work(0.0))) == [True] * 3


def test_a_row_whose_last_mask_took_long_is_late_until_its_mask_is_made() -> None:
    one, work = answer([A]), Work(LAUNCH_S * 2)
    assert not made([one], work).late, "nothing was known of it"
    one.unread.append(A)
    masking = made([one], work)
    assert masking.late == {0} and one.is_late and allows_some(masking) == [False]
    assert made([one], work).late == {0} and work.num_masks == 1

    one.mask(work)
    one.is_late = False
    assert work.num_masks == 2 and not made([one], work).late


def test_a_row_that_was_slow_once_is_not_late_for_ever() -> None:
    one, work = answer([A]), Work(LAUNCH_S * 2, QUICK_S / 2)
    made([one], work)
    one.unread.append(A)
    assert made([one], work).late == {0}
    one.mask(work)
    one.is_late = False
    one.unread.append(A)
    assert not made([one], work).late


def test_slow_rows_share_what_a_launch_may_take_and_quick_ones_come_first() -> None:
    slow, quick = [answer([A]) for _ in range(3)], answer([A])
    for each in slow:
        each.last_s = LAUNCH_S * 0.6
    masking = made([*slow, quick], Work(QUICK_S, LAUNCH_S * 0.6))
    assert masking.late == {1, 2} and allows_some(masking) == [True, False, False, True]


def test_many_quick_rows_are_made_together() -> None:
    answers = [answer([A]) for _ in range(60)]
    for each in answers:
        each.last_s = QUICK_S
    assert not made(answers, Work(QUICK_S)).late


def test_rows_of_which_nothing_is_known_hold_a_launch_up_to_a_bound() -> None:
    masking = made([answer([A]) for _ in range(9)], work := Work(MOST_S * 0.4))
    assert len(masking.late) == 6 and work.num_masks == 3


def test_each_thread_has_its_share() -> None:
    masking = made([answer([A]) for _ in range(9)], work := Work(MOST_S * 0.4), num_threads=3)
    assert not masking.late and work.num_masks == 9


def test_a_first_token_is_never_late_because_its_row_cannot_sit_out() -> None:
    first, row = answer([A]), answer([A])
    first.last_s = row.last_s = LAUNCH_S * 2
    assert made([first, row], Work(0.0), first_row=1).late == {1}


def test_many_outputs_are_not_read_within_a_launch() -> None:
    few, many = answer([A] * MAX_UNREAD), answer([A] * (MAX_UNREAD + 1))
    assert made([few, many], Work(0.0)).late == {1}


def test_an_answer_beyond_its_budget_fails_in_one_sentence() -> None:
    one, work = answer(), Work(1.0)
    one.mask(work)
    for _ in range(int(BASE_S)):
        one.unread.append(A)
        one.mask(work)
        assert not one.matching.fault
    one.unread.append(A)
    assert not one.mask(work).any()
    assert one.matching.fault == "the grammar takes too much work: 3.0 s of work for 3 tokens, expected at most 2.0 s"


@pytest.mark.parametrize("num_tokens", [10, 100])
def test_each_token_adds_to_the_budget(num_tokens: int) -> None:
    one, work = answer(), Work(0.0, BASE_S + PER_TOKEN_S * num_tokens * 0.99)
    one.mask(work)
    one.unread += [A] * (num_tokens - 1)
    one.mask(work)
    one.unread.append(A)
    assert one.mask(work).any() and not one.matching.fault and work.num_masks == 2
    one.unread.append(A)
    assert not one.mask(work).any() and "takes too much work" in one.matching.fault


def test_what_is_replayed_does_not_count() -> None:
    one, work = answer([A] * 90), Work(BASE_S * 10, 0.0)
    one.mask(work)
    one.unread.append(A)
    assert one.mask(work).any() and not one.matching.fault


def test_an_answer_with_a_fault_keeps_it() -> None:
    one = answer([A + 1])
    assert not one.mask(Work(0.0)).any()
    fault = one.matching.fault
    one.unread.append(A)
    one.mask(Work(BASE_S * 10))
    assert one.matching.fault == fault and "cannot go on" in fault
