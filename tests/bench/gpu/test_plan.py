"""How the 25 minutes are shared."""

import pytest

from bench.gpu.plan import STEP_S, STEPS, TOTAL_S, chosen, limit_s


def test_the_steps_fit_and_stand_in_their_order() -> None:
    names = [step.name for step in STEPS]
    assert names == ["tests", "parity", "decode", "prefill", "ipc", "serve", "profile"]
    assert sum(step.seconds for step in STEPS) <= TOTAL_S == 1500
    assert max(step.seconds for step in STEPS) <= STEP_S == 480


def test_each_step_has_its_time_even_if_all_before_took_all_of_theirs() -> None:
    left = TOTAL_S
    for index, step in enumerate(STEPS):
        limit = limit_s(STEPS[index + 1 :], left)
        assert step.seconds <= limit <= STEP_S
        left -= limit
    assert left >= 0


def test_what_is_not_used_is_there_for_later_steps_and_no_limit_is_negative() -> None:
    assert limit_s([], 100.0) == 100.0
    assert limit_s([], 1000.0) == STEP_S
    assert limit_s(STEPS, 100.0) == 0.0


def test_steps_are_chosen_by_name_in_their_own_order() -> None:
    assert [step.name for step in chosen(["serve", "tests"])] == ["tests", "serve"]
    assert chosen([]) == list(STEPS)
    with pytest.raises(ValueError, match="STEP: got 'decoding', expected some of tests, parity, decode"):
        chosen(["tests", "decoding"])
