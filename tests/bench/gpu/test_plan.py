"""How the 15 minutes are shared, and how steps fit into calls of six."""

import pytest

from bench.gpu.plan import CALL_S, START_S, STEP_S, STEPS, TOTAL_S, calls, chosen, limit_s

ORDER = "smoke tests handoff trace passes experts sampler drafts prefill decode ipc serve parity".split()


def test_the_steps_stand_in_their_order_what_is_least_known_first() -> None:
    names = [step.name for step in STEPS]
    assert names == ORDER


def test_no_step_takes_longer_than_90_seconds_and_all_fit() -> None:
    assert max(step.seconds for step in STEPS) <= 90
    assert sum(step.seconds for step in STEPS) <= TOTAL_S == 900


def test_each_step_has_its_time_even_if_all_before_took_all_of_theirs() -> None:
    left = TOTAL_S
    for index, step in enumerate(STEPS):
        limit = limit_s(STEPS[index:], left)
        assert step.seconds <= limit <= STEP_S
        left -= limit
    assert left >= 0


def test_what_is_not_used_is_there_for_later_steps_and_no_limit_is_negative() -> None:
    last = STEPS[-1:]
    assert limit_s(last, 100.0) == 100.0
    assert limit_s(last, 1000.0) == STEP_S
    assert limit_s(last, 0.0) == limit_s(STEPS, 0.0) == limit_s(STEPS, -1.0) == 0.0


@pytest.mark.parametrize("total_s", [60.0, 4 * 60.0, 7 * 60.0])
def test_with_fewer_minutes_every_step_gets_the_same_share_of_its_time(total_s: float) -> None:
    needed_s, left = sum(step.seconds for step in STEPS), total_s
    for index, step in enumerate(STEPS):
        limit = limit_s(STEPS[index:], left)
        assert limit == pytest.approx(step.seconds * total_s / needed_s)
        left -= limit
    assert left == pytest.approx(0.0)


def test_steps_are_chosen_by_name_in_their_own_order() -> None:
    assert [step.name for step in chosen(["serve", "tests"])] == ["tests", "serve"]
    assert chosen([]) == [*STEPS]
    with pytest.raises(ValueError, match="STEP: got 'decoding', expected some of smoke, tests, handoff, trace, "):
        chosen(["tests", "decoding"])


def test_calls_have_every_step_once_and_are_no_longer_than_six_minutes() -> None:
    planned = calls(STEPS)
    assert sorted(step.name for call in planned for step in call) == sorted(step.name for step in STEPS)
    assert all(START_S + sum(step.seconds for step in call) <= CALL_S == 360 for call in planned)
    assert [step.name for step in planned[0]][:3] == ["smoke", "tests", "handoff"]
