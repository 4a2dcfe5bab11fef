"""What the quiet phase gives: near ties by oracle, how long an answer may take."""

from loadtest.verify.answers import Choice
from loadtest.verify.judge import Place
from loadtest.verify.phases import made_asks
from loadtest.verify.quiet import REPEAT, Tried, calibrate, contradictions, early, hung_after, unsettled
from tests.loadtest.verify.answering import choice, heard


def tried(*answers: Choice, margin: float = 0.0) -> Tried:
    one = Tried(made_asks(1, 1, 250, 12, 2048)[0], [heard(answer) for answer in answers])
    one.scores = {
        "rescore": {distinct.tokens: [Place(-0.5 - margin, -0.5)] * len(distinct.tokens) for distinct in one.distinct}
    }
    return one


def test_the_near_tie_holds_repeats_and_scores() -> None:
    same = choice([5, 6, 7])
    noises = calibrate(
        [tried(same, same, margin=0.03), tried(same, choice([5, 6, 7], drift=0.01), margin=0.03)], ["rescore"]
    )
    assert noises[REPEAT].tau == noises["rescore"].tau and abs(noises[REPEAT].tau - 0.06) < 1e-9
    assert abs(noises[REPEAT].largest - 0.01) < 1e-9 and unsettled(noises) == []


def test_a_second_half_beyond_the_first_has_not_settled() -> None:
    same = choice([5, 6, 7])
    noises = calibrate([tried(same, same), tried(same, choice([5, 6, 7], drift=0.2))], [])
    assert unsettled(noises) == [REPEAT] and abs(noises[REPEAT].tau - 0.4) < 1e-9


def test_repeats_that_contradict_one_another_are_left_to_scoring() -> None:
    one, other = choice([5, 6, 7]), choice([9, 6, 7])
    assert calibrate([tried(one, other)], [])[REPEAT].why
    assert not calibrate([tried(one, other)], ["rescore"])[REPEAT].why
    assert contradictions([one, one, other]) == [other]


def test_distinct_answers_are_the_first_of_their_tokens() -> None:
    one, other = choice([5, 6, 7]), choice([9, 6, 7])
    assert [answer.tokens for answer in tried(one, one, other).distinct] == [one.tokens, other.tokens]


def test_an_answer_hangs_after_five_times_the_slowest() -> None:
    one = tried(choice([5]), choice([5]))
    one.heards[1].took_s, one.heards[1].first_s = 2.0, 0.5
    assert early([one]) == 0.25 and early([]) == 0.01
    assert hung_after([one], 30.0) == 40.0 and hung_after([], 30.0) == 30.0
