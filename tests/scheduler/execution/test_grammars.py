from collections.abc import Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from protocol.messages_gateway import SamplingParams
from runtime.vocabulary import Vocabulary
from scheduler.execution.answers import NOTHING_FITS, Masking
from scheduler.execution.grammars import AnswerGrammars, Inline, no_vocabulary
from scheduler.plan import Draw, DropMask, ForgetGrammar, GrammarLearnt, LearnGrammar, MaskReady
from tests.doubles.held_pool import HeldPool
from tests.doubles.late_pool import LatePool
from tests.grammars import grammar_of, text_named, vocabulary

A, B, C, EOS = 1, 2, 3, 99
NAME = grammar_of([(A, B, C), (B, C)])
Panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
CPU = torch.device("cpu")


def grammars(compiling: Pool | None = None, masking: Pool | None = None, beside: Pool | None = None) -> AnswerGrammars:
    pools = compiling or Inline(), masking or Inline(), beside or Inline()
    made = AnswerGrammars(partial(vocabulary, 100), *pools)
    made.learn(LearnGrammar(NAME, text_named(NAME)))
    return made


def draw(row: int, owner_number: int = 1, choice: int = 0, outputs: tuple[int, ...] = (), name: str = NAME) -> Draw:
    params = SamplingParams(max_tokens=9, eos_token_ids=(EOS,), grammar=name)
    return Draw(row, owner_number, choice, params, 1, outputs=outputs)


def masked(made: AnswerGrammars, draws: Sequence[Draw], begin: Sequence[Draw] = ()) -> Masking:
    masking = made.apply((), draws, begin)
    assert masking is not None
    made.start(masking)
    return masking


def allowed(masking: Masking) -> dict[int, set[int]]:
    rows_N, words_NW = masking.allowed(lambda number: 10 + number, CPU)
    bits_NB = np.unpackbits(words_NW.numpy().view(np.uint8), axis=1, bitorder="little")[:, :100]
    return {int(row): set(np.flatnonzero(bits).tolist()) for row, bits in zip(rows_N, bits_NB, strict=True)}


def ready(beside: Pool | None = None) -> AnswerGrammars:
    """The same, which have learnt the grammar."""
    made = grammars(beside=beside)
    assert made.learnt() == [GrammarLearnt(NAME)]
    return made


def test_answers_go_on_with_what_launches_draw() -> None:
    made = ready()
    one, plain, other = draw(1), draw(2, name=""), draw(3, outputs=(A,))
    first = masked(made, [one, plain, other], [one, plain, other])
    assert allowed(first) == {10: {A, B}, 12: {B}}
    second = made.apply((), [one, other], [])
    assert second is not None
    made.start(second)
    assert not second.is_done, "the tokens before it are not known"
    first.over([(B,), (50,), (B,)])
    made.start(second)
    assert allowed(second) == {10: {C}, 11: {C}}


def test_a_launch_without_grammars_has_no_masks() -> None:
    assert grammars().apply((), [draw(1, name="")], [draw(1, name="")]) is None


def test_a_row_that_joins_again_keeps_its_state_and_a_new_owner_begins_anew() -> None:
    made = ready()
    first = masked(made, [draw(1)], [draw(1)])
    first.over([(A,)])
    again = masked(made, [draw(1)], [draw(1, outputs=())])  # the host did not know A when it planned this
    assert allowed(again) == {10: {B}}
    again.over([(B,)])
    assert allowed(masked(made, [draw(1, owner_number=2)], [draw(1, owner_number=2)])) == {10: {A, B}}


def test_choices_drawn_at_one_row_have_states_of_their_own() -> None:
    made = ready()
    draws = [draw(1, choice=0), draw(1, choice=1, outputs=(A,))]
    assert allowed(masked(made, draws, draws)) == {10: {A, B}, 11: {B}}


def test_a_failed_launch_tells_no_tokens_and_holds_nobody_up() -> None:
    made = ready()
    first = masked(made, [draw(1)], [draw(1)])
    first.over(())
    assert allowed(masked(made, [draw(1)])) == {10: {A, B}}


def test_rows_that_are_stuck_say_why() -> None:
    made = ready()
    masking = masked(made, [draw(1, outputs=(C,)), draw(2)], [draw(1, outputs=(C,)), draw(2)])
    assert allowed(masking) == {10: set(), 11: {A, B}}
    assert "cannot go on in its grammar with token 3" in masking.why_stuck(0)
    assert masking.why_stuck(1) == NOTHING_FITS and masking.why_stuck(2) == ""


def test_masks_and_grammars_may_be_late() -> None:
    made = grammars(compiling=LatePool(5, 0.1), masking=LatePool(2, 0.1))
    looks = 0
    while not (learnt := made.learnt()):
        looks += 1
    assert learnt == [GrammarLearnt(NAME)]
    masking = masked(made, [draw(1)], [draw(1)])
    assert not masking.is_done
    while not masking.is_done:
        looks += 1
    assert allowed(masking) == {10: {A, B}}


def test_a_grammar_that_cannot_be_compiled_is_told() -> None:
    made = grammars()
    made.learn(LearnGrammar("bad", "no grammar"))
    good, bad = made.learnt()
    assert good == GrammarLearnt(NAME) and bad.name == "bad" and "cannot be followed" in bad.fault
    without = AnswerGrammars(no_vocabulary)
    without.learn(LearnGrammar(NAME, text_named(NAME)))
    assert "knows no bytes" in without.learnt()[0].fault


@pytest.mark.parametrize("kind", (RuntimeError, Panic))
def test_a_bug_of_the_library_with_a_grammar_fails_its_requests_alone(kind: type[BaseException]) -> None:
    def load() -> Vocabulary:
        raise kind("a bug")

    for pool in (Inline(), ThreadPoolExecutor(1)):
        made = AnswerGrammars(load, compiling=pool)
        made.learn(LearnGrammar(NAME, text_named(NAME)))
        made.close()
        assert [grammar.fault for grammar in made.learnt()] == [f"the grammar cannot be compiled: {kind.__name__}"]


def test_outputs_that_a_late_row_brings_are_read_beside_and_what_launches_draw_follows() -> None:
    made = ready()
    made.make_mask(draw(1, outputs=(A,)))
    assert made.made() == [MaskReady(1, 1)]
    chunk = made.apply([draw(1, outputs=(A,))], [], [draw(1, outputs=(A,))])
    assert chunk is not None
    made.start(chunk)
    assert allowed(chunk) == {10: {B}} and not chunk.late
    chunk.over([(B,)])
    assert allowed(masked(made, [draw(1)], [draw(1, outputs=(A, B))])) == {10: {C}}


def test_the_mask_of_a_row_that_is_dropped_is_made_for_nobody() -> None:
    made = ready(pool := HeldPool())
    made.make_mask(draw(1, outputs=(A,)))
    made.make_mask(draw(2, outputs=(B,)))
    made.drop_mask(DropMask(1, 1))
    while pool.held:
        pool.let_go()
        masks = made.made()
    assert masks == [MaskReady(2, 1)]


def test_a_forgotten_grammar_begins_no_answers_but_those_that_have_begun_go_on() -> None:
    made = ready()
    masked(made, [draw(1)], [draw(1)]).over([(A,)])
    made.forget(ForgetGrammar(NAME))
    assert allowed(masked(made, [draw(1)])) == {10: {B}}
    with pytest.raises(KeyError):
        made.apply((), [draw(2)], [draw(2)])
