"""What is asked: prompts with needles, and phases that follow from a seed."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.verify.answers import Ask
from loadtest.verify.canary import RUN
from loadtest.verify.phases import ASKED_FOR, CALM, FIRST_ID, Known, Step, check_phase, made_asks, rounds
from protocol.errors import ConfigError
from tests.loadtest.verify.answering import choice

NAMES = (*CALM, *ASKED_FOR)


def known(number: int = 4) -> list[Known]:
    made = made_asks(1, number, 250, 12, 2048)
    return [Known(one, choice(range(100 * number, 100 * number + 12))) for number, one in enumerate(made)]


@given(st.integers(), st.integers(2, 16), st.integers(64, 5000), st.integers(2, 64), st.integers(400, 4096))
def test_each_prompt_has_its_needle_and_fits(seed: int, number: int, vocab: int, max_tokens: int, context: int) -> None:
    made = made_asks(seed, number, vocab, max_tokens, context)
    assert made == made_asks(seed, number, vocab, max_tokens, context) and len(made) == number
    for one in made:
        prompt = one.ask.prompt
        runs = {prompt[start : start + RUN] for start in range(len(prompt))}
        assert one.needle in runs and not runs & {other.needle for other in made if other.needle != one.needle}
        assert all(FIRST_ID <= token < vocab for token in prompt) and len(prompt) + 4 * max_tokens < context


def test_a_context_without_room_is_told() -> None:
    with pytest.raises(ConfigError, match="--max-tokens: got 500, expected room for prompts in a context of 2048"):
        made_asks(1, 4, 250, 500, 2048)


def test_rounds_follow_from_their_seed_and_have_each_phase() -> None:
    first = list(islice(rounds(known(), 3, 4, NAMES, 1.8), 19))
    assert (
        first
        == list(islice(rounds(known(), 3, 4, NAMES, 1.8), 19))
        != list(islice(rounds(known(), 4, 4, NAMES, 1.8), 19))
    )
    assert [phase.name for phase in first] == [*NAMES, *(name for name in NAMES if name != "fault")]
    assert {phase.name: phase.rate for phase in first if phase.rate} == {"churn": 1.8}
    steps = {phase.name: phase.steps for phase in first[: len(NAMES)]}
    assert {step.stream for step in steps["whole"]} == {True, False} and all(step.is_cold for step in steps["cold"])
    assert steps["choices"][0].ask.n == 3 and all(
        step.ask.temperature and not step.is_judged for step in steps["sampled"]
    )
    assert len(steps["lengths"][0].ask.prompt) == max(len(one.made.ask.prompt) for one in known())
    for name in ("cancels", "churn"):
        assert [step.leave_after is None for step in steps[name]] == [False, True] * 4


def test_a_turn_goes_on_where_the_known_answer_was_cut() -> None:
    mine = known()
    phases = islice(rounds(mine, 3, 4, ["turns"], 1.0), 20)
    for step in (step for phase in phases for step in phase.steps):
        whole = mine[step.known]
        assert 0 < step.skip < 12 and step.ask.max_tokens == 12 - step.skip
        assert step.ask.prompt == (*whole.made.ask.prompt, *whole.answer.tokens[: step.skip])
        assert step.right(mine)[0].tokens == whole.answer.tokens[step.skip :]
    texts = [Known(one.made, choice(["a", "b", "c"])) for one in mine]
    assert next(rounds(texts, 3, 4, ["turns"], 1.0)).steps[0].skip == 0  # texts cannot be sent back


def test_each_choice_has_the_same_right_answer() -> None:
    right = Step(Ask((1, 2), 12, n=3), 2).right(known())
    assert list(right) == [0, 1, 2] and {choice.tokens[0] for choice in right.values()} == {200}


def test_only_phases_that_were_asked_for_can_run() -> None:
    check_phase("turns", ())
    check_phase("fault", ("fault",))
    with pytest.raises(ConfigError, match=r"--only: got 'fault', expected one of load, .*; fault needs its own flag"):
        check_phase("fault", ("cancels",))
    with pytest.raises(ConfigError, match="--only: got 'x'"):
        check_phase("x", ())
