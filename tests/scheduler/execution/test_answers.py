"""Which masks are made within a launch, and what an answer may take."""

from collections import deque
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.grammars import CompiledGrammar, Matching, Words, compile_grammar
from scheduler.execution.answers import (
    BASE_S,
    LAUNCH_S,
    MOST_S,
    PER_TOKEN_S,
    QUICK_S,
    Answer,
    KnownGrammar,
    Masking,
)
from scheduler.execution.grammars import Inline
from tests.doubles.clock import VirtualClock
from tests.grammars import grammar_of, text_named, vocabulary

NUM_TOKENS, EOS, A = 100, 99, 1
Panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})


class Work(VirtualClock):
    """A clock of work: each mask takes the next of `times`, and the last one again and again; each read `read_s`."""

    def __init__(self, *times: float, read_s: float = 0.0) -> None:
        super().__init__()
        self.times, self.read_s = times, read_s
        self.num_masks = 0

    def mask(self) -> None:
        self.advance(self.times[min(self.num_masks, len(self.times) - 1)])
        self.num_masks += 1


class Worked(Matching):
    """A matching whose masks and reads take what a clock of work says. `raises` with the next call."""

    work: Work
    raises: BaseException | None = None

    def read(self, tokens: Sequence[int]) -> None:
        if self.raises is not None:
            raise self.raises
        self.work.advance(self.work.read_s)
        super().read(tokens)

    def mask(self) -> Words:
        if not self.has_mask:
            self.work.mask()
        return super().mask()


def compiled(length: int = 400) -> CompiledGrammar:
    return compile_grammar(text_named(grammar_of([(A,) * length])), vocabulary(NUM_TOKENS))


def answer(outputs: Sequence[int] = (), of: KnownGrammar | None = None) -> Answer:
    grammar = of or KnownGrammar(compiled())
    matching = grammar.compiled.begin((EOS,))
    matching.__class__ = Worked
    return Answer(grammar, matching, deque(outputs))


def run(one: Answer, work: Work) -> Words:
    assert isinstance(one.matching, Worked)
    one.matching.work = work
    return one.mask(work)


def made(answers: Sequence[Answer], work: Work, first_row: int = 0, num_threads: int = 1) -> Masking:
    for answer in answers:
        assert isinstance(answer.matching, Worked)
        answer.matching.work = work
    num_words = vocabulary(NUM_TOKENS).num_words
    masking = Masking(dict(enumerate(answers)), first_row, None, work, num_words, num_threads)
    masking.start(Inline(), lambda: None)
    assert masking.is_done
    return masking


def allows_some(masking: Masking) -> list[bool]:
    _, words_NW = masking.allowed(lambda row: row, torch.device("cpu"))
    return [bool(words_W.any()) for words_W in words_NW]


def test_the_first_mask_of_a_grammar_is_made_once_for_all_answers() -> None:
    grammar = KnownGrammar(compiled())
    answers = [answer(of=grammar) for _ in range(3)]
    for one in answers:
        assert one.matching.has_mask and one.fits(spent_s=1000.0)
        one.matching.matcher = None  # type: ignore[assignment]  # nothing asks it
    assert allows_some(made(answers, Work(0.0))) == [True] * 3


def test_a_row_whose_last_mask_took_long_is_late_until_its_mask_is_made() -> None:
    one, work = answer([A]), Work(LAUNCH_S * 2)
    assert not made([one], work).late, "nothing was known of it"
    one.unread.append(A)
    masking = made([one], work)
    assert masking.late == {0} and one.is_late and allows_some(masking) == [False]
    assert made([one], work).late == {0} and work.num_masks == 1

    run(one, work)
    one.is_late = False
    assert work.num_masks == 2 and not made([one], work).late


def test_a_row_that_was_slow_once_is_not_late_for_ever() -> None:
    one, work = answer([A]), Work(LAUNCH_S * 2, QUICK_S / 2)
    made([one], work)
    one.unread.append(A)
    assert made([one], work).late == {0}
    run(one, work)
    one.is_late = False
    one.unread.append(A)
    assert not made([one], work).late


def test_slow_rows_share_what_a_launch_may_take_and_quick_ones_come_first() -> None:
    slow, quick = [answer([A]) for _ in range(3)], answer([A])
    for slow_one in slow:
        slow_one.last_s = LAUNCH_S * 0.6
    masking = made([*slow, quick], Work(QUICK_S, LAUNCH_S * 0.6))
    assert masking.late == {1, 2} and allows_some(masking) == [True, False, False, True]


def test_many_quick_rows_are_made_together() -> None:
    answers = [answer([A]) for _ in range(60)]
    for one in answers:
        one.last_s = QUICK_S
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


@pytest.mark.parametrize("num_unread", (2, 64, 300))
def test_outputs_of_an_earlier_attempt_are_not_read_within_a_launch(num_unread: int) -> None:
    one, many = answer([A]), answer([A] * num_unread)
    assert made([one, many], Work(0.0)).late == {1} and len(many.unread) == num_unread


def test_a_new_answer_is_as_slow_as_its_grammar_has_been() -> None:
    grammar, work = KnownGrammar(compiled()), Work(LAUNCH_S * 2, 0.0)
    first = answer([A], grammar)
    made([first], work).over([[A]])
    made([first], work).over([[A]])
    assert first.is_late and grammar.slowest_s == LAUNCH_S * 2
    run(first, work)
    assert first.last_s == 0.0

    assert made([answer([A], grammar)], work).late == {0}, "what the grammar has taken once, it may take again"
    assert not made([answer([A], grammar), answer([A])][1:], work).late, "another grammar is not slow for it"
    assert not made([answer((), grammar)], work).late, "its first mask is there"


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=50), st.integers(1, 2000))
def test_what_a_grammar_takes_at_most_falls_by_half_in_256_masks(took: list[float], num_later: int) -> None:
    grammar = KnownGrammar(compiled(1))
    for number, took_s in enumerate(took):
        grammar.note(took_s)
        halves = [before * 0.5 ** ((number - index) / 256) for index, before in enumerate(took[: number + 1])]
        assert grammar.slowest_s == pytest.approx(max(halves))

    slowest_s = grammar.slowest_s
    for _ in range(num_later):
        grammar.note(0.0)
    assert grammar.slowest_s == pytest.approx(slowest_s * 0.5 ** (num_later / 256))


def test_a_new_answer_is_not_late_for_ever_because_its_grammar_was_slow_once() -> None:
    grammar, work = KnownGrammar(compiled()), Work(LAUNCH_S * 1.5, 0.0)
    one = answer([A], grammar)
    made([one], work).over([[A]])
    assert made([answer([A], grammar)], work).late == {0}, "at first a new answer is late for it"

    run(one, work)
    one.unread.append(A)
    num_masks = 0
    while grammar.slowest_s > LAUNCH_S:
        masking = made([one], work)
        assert not masking.late
        masking.over([[A]])
        num_masks += 1
    assert 128 < num_masks < 256
    assert not made([answer([A], grammar)], work).late


def test_a_mask_counts_for_its_grammar_once() -> None:
    """Launches in which an answer is late, or needs no new mask, make its grammar neither slower nor quicker."""
    grammar, work = KnownGrammar(compiled()), Work(LAUNCH_S * 2)
    one = answer([A], grammar)
    made([one], work).over([])
    made([one], work).over([[A]])
    made([one], work).over([])
    assert one.is_late and work.num_masks == 1 and grammar.slowest_s == LAUNCH_S * 2


def test_what_many_outputs_take_to_read_is_not_expected_of_the_next_one() -> None:
    one, work = answer([A] * 100), Work(QUICK_S / 2, read_s=LAUNCH_S)
    run(one, work)
    assert one.last_s == pytest.approx(LAUNCH_S + QUICK_S / 2)
    one.unread.append(A)
    assert made([one], work).late == {0}


def test_reading_stops_behind_the_output_with_which_the_work_is_spent() -> None:
    one, work = answer([A] * 10), Work(0.0, read_s=1.0)
    assert isinstance(one.matching, Worked)
    one.matching.work = work
    assert one.read(work, 2.5) == 3.0 and len(one.unread) == 7
    assert one.read(work, 0.1) == 1.0 and one.read(work, 100.0) == 6.0 and not one.unread
    assert run(one, work).any() and not one.matching.fault, "the replay does not count"


def test_an_answer_beyond_its_budget_fails_in_one_sentence() -> None:
    one, work = answer(), Work(1.0)
    run(one, work)
    for _ in range(int(BASE_S)):
        one.unread.append(A)
        run(one, work)
        assert not one.matching.fault
    one.unread.append(A)
    assert not run(one, work).any()
    assert one.matching.fault == "the grammar takes too much work: 3.0 s of work for 3 tokens, expected at most 2.0 s"


def test_reading_counts_as_work_too() -> None:
    one, work = answer(), Work(0.0, read_s=BASE_S * 0.6)
    run(one, work)
    one.unread.append(A)
    assert run(one, work).any()
    one.unread.append(A)
    assert not run(one, work).any()
    assert one.matching.fault == "the grammar takes too much work: 2.4 s of work for 2 tokens, expected at most 2.0 s"


@pytest.mark.parametrize("error", (RuntimeError("a bug"), MemoryError(), Panic("index out of bounds")), ids=repr)
@pytest.mark.parametrize("stuck", range(3))
def test_an_answer_whose_mask_cannot_be_made_fails_alone(error: BaseException, stuck: int) -> None:
    answers = [answer([A]) for _ in range(3)]
    matching = answers[stuck].matching
    assert isinstance(matching, Worked)
    matching.raises = error
    masking = made(answers, Work(0.0))
    assert allows_some(masking) == [row != stuck for row in range(3)] and not masking.late
    reason = f"its mask cannot be made: {type(error).__name__}"
    assert [masking.why_stuck(row) == reason for row in range(3)] == [row == stuck for row in range(3)]


def test_an_interrupt_is_no_fault_of_an_answer() -> None:
    one = answer([A])
    matching = one.matching
    assert isinstance(matching, Worked)
    matching.raises = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(one, Work(0.0))
    assert one.matching.fault == ""


@pytest.mark.parametrize("num_tokens", [10, 100])
def test_each_token_adds_to_the_budget(num_tokens: int) -> None:
    one, work = answer(), Work(0.0, BASE_S + PER_TOKEN_S * num_tokens * 0.99)
    run(one, work)
    one.unread += [A] * (num_tokens - 1)
    run(one, work)
    one.unread.append(A)
    assert run(one, work).any() and not one.matching.fault and work.num_masks == 2
    one.unread.append(A)
    assert not run(one, work).any() and "takes too much work" in one.matching.fault


def test_what_is_replayed_does_not_count() -> None:
    one, work = answer([A] * 90), Work(BASE_S * 10, 0.0)
    run(one, work)
    one.unread.append(A)
    assert run(one, work).any() and not one.matching.fault


def test_an_answer_with_a_fault_keeps_it() -> None:
    one = answer([A + 1])
    assert not run(one, Work(0.0)).any()
    fault = one.matching.fault
    one.unread.append(A)
    run(one, Work(BASE_S * 10))
    assert one.matching.fault == fault and "cannot go on" in fault
