"""The near tie that a quiet phase gives, and the step of a server's logits."""

import math
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.verify.answers import Top
from loadtest.verify.ties import FLOOR, LIMIT, differences, noise_of, noise_of_scoring, step_of, too_many_ties
from tests.loadtest.verify.answering import choice

SMALL = st.lists(st.floats(0, 0.2), max_size=30)


@given(SMALL, SMALL, st.sampled_from([0.0, 0.0625, 0.125]))
def test_the_first_half_doubled_holds_the_second(first: list[float], second: list[float], step: float) -> None:
    noise = noise_of(first, second, step)
    most = max([*first, *second], default=0.0)
    assert noise.tau >= max(FLOOR, 2 * max(first, default=0.0)) and not noise.why
    assert noise.is_settled == (max(second, default=0.0) <= max(FLOOR, 2 * step, 2 * max(first, default=0.0)))
    assert most <= noise.tau and noise.largest == most


@pytest.mark.parametrize("bad", [LIMIT + 0.1, math.inf, math.nan])
def test_a_server_that_contradicts_itself_gives_no_near_tie(bad: float) -> None:
    assert noise_of([0.01, bad], [0.01], 0.0).why.startswith("answers of the quiet server differ by")


def bfloat16(value: float) -> float:
    """The nearest one below: the first 16 bits of a float32."""
    return struct.unpack(">f", struct.pack(">f", value)[:2] + b"\0\0")[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("low, step", [(16.5, 0.125), (8.5, 0.0625), (2.1, 2**-6)])
def test_the_step_of_bfloat16_logits_shows_in_their_differences(low: float, step: float) -> None:
    rng = random.Random(1)
    tops: list[Top] = []
    for _ in range(60):
        logits = [bfloat16(rng.uniform(low, 1.8 * low)) for _ in range(5)]
        total = math.log(sum(map(math.exp, logits)))
        tops.append({token: value - total for token, value in enumerate(logits)})
    assert step <= step_of(tops) <= 2 * step


def test_float32_logits_have_no_step() -> None:
    rng = random.Random(1)
    assert step_of([{token: rng.uniform(-9, 0) for token in range(5)} for _ in range(60)]) == 0.0
    assert step_of([]) == 0.0 == step_of([{1: -0.5}])


def test_differences_end_where_two_answers_part() -> None:
    one, other = choice([5, 6, 7], [5.0, 0.25]), choice([5, 1_001, 9], drift=0.125)
    assert differences(one, choice([5, 6, 7], drift=0.125)) == [0.125] * 3
    assert differences(one, other)[0] == 0.125 and len(differences(one, other)) == 2
    assert differences(one, other)[1] == math.inf  # token 6 is not in the other's list


def test_scores_that_mean_something_else_are_judged_by_margins_alone() -> None:
    margins, drifts = [[0.01] * 6, [0.02] * 6], [[1.5] * 6, [2.5] * 6]
    noise = noise_of_scoring(margins, drifts, 0.0)
    assert (noise.has_drift, noise.tau, noise.largest) == (False, 0.02, 0.02)
    assert noise_of_scoring(margins, [[0.03] * 6, [0.3] * 6], 0.0).has_drift


def test_what_the_server_contradicts_alone_is_no_noise() -> None:
    noise = noise_of_scoring([[0.01, 9.0]], [[0.02, 0.01]], 0.0)
    assert noise.largest == 0.02 and not noise.why


def test_many_near_ties_are_suspect() -> None:
    assert too_many_ties(8, 100) and not too_many_ties(7, 100)
    assert too_many_ties(16, 336) and not too_many_ties(15, 336)
    assert too_many_ties(154, 6000) and not too_many_ties(153, 6000)  # 2.6%: a long run leaves chance less room
    assert not too_many_ties(1, 0) and not too_many_ties(0, 0)
