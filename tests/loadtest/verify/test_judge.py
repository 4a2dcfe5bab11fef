"""Verdicts on answers beside known ones, by their scores, and alone."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.verify.answers import Choice, Heard
from loadtest.verify.judge import Place, Verdict, judge, judge_alone, judge_scored
from tests.loadtest.verify.answering import TAU, choice, heard

TOKENS = st.lists(st.integers(5, 900), min_size=3, max_size=12)
RIGHT = choice([5, 6, 7, 8, 9, 10])
HALF = 3


def parted(known: Choice, index: int, lead: float) -> tuple[Choice, Choice]:
    """The known answer whose token at `index` leads another one by `lead`, and an answer with that one, by as much."""
    other = 1_000 + index
    leads = [5.0] * index + [lead]
    known = choice(known.tokens, leads)
    said = choice([*known.tokens[:index], other, *[77] * (len(known.tokens) - index - 1)])
    top = {other: -0.5, known.tokens[index]: -0.5 - lead}
    return known, replace(said, tops=(*said.tops[:index], top, *said.tops[index + 1 :]))


@given(TOKENS, st.floats(-0.9 * TAU, 0.9 * TAU))
def test_the_same_tokens_within_the_near_tie_are_exact(tokens: list[int], drift: float) -> None:
    known = choice(tokens)
    said = heard(choice(tokens, drift=drift), counted=len(tokens))
    assert judge(said, {0: known}, TAU).verdict == Verdict.EXACT


@given(TOKENS, st.data())
def test_where_two_answers_part_their_margin_decides(tokens: list[int], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(tokens) - 1))
    lead = data.draw(st.floats(0, 5 * TAU))
    known, said = parted(choice(tokens), index, lead)
    judged = judge(heard(said, counted=len(tokens)), {0: known}, TAU)
    expected = Verdict.TIED if lead <= 2 * TAU else Verdict.SUSPECT if lead <= 4 * TAU else Verdict.WRONG
    near = min(abs(lead - 2 * TAU), abs(lead - 4 * TAU)) < 1e-9  # of the sums of floats
    assert near or (judged.verdict, judged.place) == (expected, index)
    assert judge(heard(said), {0: known}).verdict == Verdict.WRONG  # where answers must be exact


@given(TOKENS, st.data())
def test_a_token_that_is_in_no_list_is_wrong(tokens: list[int], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(tokens) - 1))
    said = choice([*tokens[:index], 950, *tokens[index + 1 :]])
    judged = judge(heard(said, counted=len(tokens)), {0: choice(tokens)}, TAU)
    assert (judged.verdict, judged.place) == (Verdict.WRONG, index)


@pytest.mark.parametrize(
    "places, drift, verdict",
    [
        (1, 1.5, Verdict.TIED),  # noise has a long tail
        (2, 1.5, Verdict.SUSPECT),
        (1, 3.0, Verdict.SUSPECT),
        (1, 5.0, Verdict.WRONG),
        (2, 3.0, Verdict.WRONG),
    ],
)
def test_log_probabilities_of_the_right_tokens_must_be_right(places: int, drift: float, verdict: Verdict) -> None:
    off = choice(RIGHT.tokens, drift=drift * TAU)
    said = replace(
        RIGHT, logprobs=off.logprobs[:places] + RIGHT.logprobs[places:], tops=off.tops[:places] + RIGHT.tops[places:]
    )
    assert judge(heard(said, counted=6), {0: RIGHT}, TAU).verdict == verdict


def test_a_token_that_its_own_list_does_not_prefer_is_wrong() -> None:
    said = replace(RIGHT, tops=tuple({**top, 990: 0.0} for top in RIGHT.tops))
    assert judge(heard(said, counted=6), {0: RIGHT}, TAU).verdict == Verdict.WRONG


@pytest.mark.parametrize(
    "said, verdict",
    [
        (heard(RIGHT, counted=6), Verdict.EXACT),
        (heard(RIGHT, counted=7), Verdict.USAGE),
        (heard(choice(RIGHT.tokens[:HALF], finish="stop"), counted=HALF), Verdict.TRUNCATED),
        (heard(choice(RIGHT.tokens[:HALF], finish="stop"), counted=6), Verdict.TRUNCATED),
        (heard(replace(RIGHT, finish="stop"), counted=6), Verdict.WRONG),
        (heard(choice([5, 6, 7, 7, 8, 9, 10]), counted=6), Verdict.STREAM_DIFFERS),  # a chunk came twice
        (heard(choice([5, 6, 8, 9, 10]), counted=6), Verdict.STREAM_DIFFERS),  # one is missing
        (heard(choice([5, 7, 6, 8, 9, 10]), counted=6), Verdict.STREAM_DIFFERS),  # two have changed places
        (heard(choice([5, 7, 6, 8, 9, 10]), counted=6, stream=False), Verdict.WRONG),
        (heard(RIGHT, done=False), Verdict.TRUNCATED),
        (heard(choice([5, 9]), done=False), Verdict.WRONG),
    ],
)
def test_ends_and_counts(said: Heard, verdict: Verdict) -> None:
    assert judge(said, {0: RIGHT}, TAU).verdict == verdict


def test_the_same_tokens_with_another_text_differ_in_the_stream() -> None:
    assert judge(heard(RIGHT, counted=6), {0: replace(RIGHT, text="x")}, TAU).verdict == Verdict.STREAM_DIFFERS


def test_an_end_within_a_near_tie_is_one() -> None:
    """The end may have been the token that is nearly as likely; which one it is, nobody tells."""
    known = choice(RIGHT.tokens, [5.0] * HALF + [TAU / 2])
    short = choice(RIGHT.tokens[:HALF], finish="stop")
    assert judge(heard(short, counted=HALF), {0: known}, TAU, may_stop=True).verdict == Verdict.TIED
    assert judge(heard(short, counted=HALF), {0: known}, TAU).verdict == Verdict.TRUNCATED
    longer = choice(RIGHT.tokens, [5.0] * HALF + [TAU / 2])
    assert judge(heard(longer, counted=6), {0: short}, TAU, may_stop=True).verdict == Verdict.TIED
    assert judge(heard(longer, counted=6), {0: short}, TAU).verdict == Verdict.WRONG
    assert judge(heard(RIGHT, counted=6), {0: short}, TAU, may_stop=True).verdict == Verdict.WRONG


def test_without_log_probabilities_another_answer_cannot_be_judged() -> None:
    said, known = Choice((5, 9), "length", "x"), Choice((5, 6), "length", "y")
    answer = Heard(status=200, tokens={0: list(said.tokens)}, finishes={0: "length"}, done=True)
    assert judge(answer, {0: known}, TAU).verdict == Verdict.CANNOT_JUDGE


@pytest.mark.parametrize(
    "change, verdict",
    [
        ({"left": True}, Verdict.LEFT),
        ({"error": {"message": "busy"}}, Verdict.ERROR),
        ({"broken": "no end", "is_late": True}, Verdict.HUNG),
        ({"broken": "cut off"}, Verdict.TRUNCATED),
        ({"malformed": "not JSON"}, Verdict.WRONG),
    ],
)
def test_without_an_end(change: dict[str, Any], verdict: Verdict) -> None:
    said = heard(choice(RIGHT.tokens[:HALF]), done=False)
    assert judge(replace(said, **change), {0: RIGHT}, TAU).verdict == verdict
    assert judge_alone(replace(said, **change), 6, may_stop=False).verdict == verdict


@pytest.mark.parametrize(
    "tokens, known, verdict",
    [
        ([*RIGHT.tokens, 11, 12], RIGHT, Verdict.LEFT),  # one event may have more tokens than the known answer
        ([*RIGHT.tokens, 11, 12], replace(RIGHT, finish="stop"), Verdict.WRONG),
        ([*RIGHT.tokens[:-1], 99, 11], RIGHT, Verdict.WRONG),
    ],
)
def test_who_leaves_may_have_got_more_than_the_known_length(tokens: list[int], known: Choice, verdict: Verdict) -> None:
    said = replace(heard(choice(tokens), done=False), left=True)
    assert judge(said, {0: known}, TAU).verdict == verdict


def test_a_known_cause_excuses_a_cut_and_no_wrong_token() -> None:
    cut = replace(heard(choice([5]), done=False), broken="cut off")
    assert judge(cut, {0: RIGHT}, TAU, is_excused=True).verdict == Verdict.CUT
    wrong = replace(heard(choice([9]), done=False), broken="cut off")
    assert judge(wrong, {0: RIGHT}, TAU, is_excused=True).verdict == Verdict.WRONG


@pytest.mark.parametrize(
    "num, finish, may_stop, counted, verdict",
    [
        (6, "length", False, 6, Verdict.EXACT),
        (3, "stop", True, 3, Verdict.EXACT),
        (3, "stop", False, 3, Verdict.TRUNCATED),
        (3, "length", True, 6, Verdict.TRUNCATED),
        (6, "length", False, 5, Verdict.USAGE),
        (6, "", False, 6, Verdict.TRUNCATED),
        (7, "length", False, 6, Verdict.STREAM_DIFFERS),
    ],
)
def test_an_answer_of_which_only_the_end_is_known(
    num: int, finish: str, may_stop: bool, counted: int, verdict: Verdict
) -> None:
    said = heard(choice(list(range(5, 5 + num)), finish=finish or None), counted=counted)  # type: ignore[arg-type]
    assert judge_alone(said, 6, may_stop=may_stop).verdict == verdict


@given(TOKENS, st.floats(0, 5 * TAU), st.data())
def test_scores_decide_of_one_token(tokens: list[int], margin: float, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(tokens) - 1))
    said = choice(tokens)
    scored = [Place(-0.5, -0.5 + margin * (number == index)) for number in range(len(tokens))]
    verdict = judge_scored(said, scored, TAU, is_greedy=True, has_drift=True).verdict
    bounds = ((TAU, Verdict.EXACT), (2 * TAU, Verdict.TIED), (4 * TAU, Verdict.SUSPECT), (9.0, Verdict.WRONG))
    expected = next(verdict for bound, verdict in bounds if margin <= bound)
    assert verdict == expected or any(abs(margin - bound) < 1e-9 for bound, _ in bounds)
    assert judge_scored(said, scored, TAU, is_greedy=False, has_drift=True).verdict == Verdict.EXACT


@pytest.mark.parametrize("has_drift, verdict", [(True, Verdict.WRONG), (False, Verdict.EXACT)])
def test_scores_decide_of_what_was_claimed(has_drift: bool, verdict: Verdict) -> None:
    scored = [Place(-1.5, -1.5)] * 6
    assert judge_scored(RIGHT, scored, TAU, is_greedy=False, has_drift=has_drift).verdict == verdict
