"""Costs of launches: on lines between sizes at the start, and corrected by the times between results."""

import pytest

from scheduler.planning.launch_costs import DOUBT, FEW, KEPT, MOST, PLAIN, LaunchCosts, StepCosts

USUAL = StepCosts((1, 16), ((1.0, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7), (1.6, 2.6, 3.4, 4.2, 5.0, 5.8, 6.6)))
FLAT = StepCosts((1, 16), ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0)))


def test_costs_lie_on_the_lines_between_what_was_measured() -> None:
    assert USUAL.launch_s(1) == list(USUAL.seconds[0]) and USUAL.launch_s(16) == pytest.approx(USUAL.seconds[1])
    assert USUAL.launch_s(4)[:2] == pytest.approx([1.0 + 0.6 * 3 / 15, 1.2 + 1.4 * 3 / 15])
    assert USUAL.launch_s(31)[0] == pytest.approx(2.2)


def test_costs_that_were_measured_on_a_disturbed_machine_never_fall() -> None:
    assert StepCosts((1, 2), ((1.0, 5.0, 2.0), (0.9, 4.0, 2.0))).launch_s(100) == [1.0, 5.0, 5.0]
    assert StepCosts((1,), ((1.0, 5.0, 2.0),)).launch_s(7) == [1.0, 5.0, 5.0]


SURELY = 1000  # launches


def timed(costs: LaunchCosts, rows: object, num_steps: int, seconds: float, count: int, now: float = 0.0) -> float:
    """So many launches of one kind behind a first one, whose time tells nothing."""
    for launch in range(count + 1):
        now += seconds if launch else 77.0
        costs.over(rows, num_steps, now)  # type: ignore[arg-type]
    return now


def test_until_a_few_launches_are_timed_costs_are_those_of_the_start() -> None:
    costs = LaunchCosts(FLAT)
    now = timed(costs, "a", 0, 0.5, FEW - 1)
    assert not costs.is_known(1, 0) and costs.launch_s(1) == [1.0, 2.0, 3.0]
    costs.over("a", 0, now + 0.5)
    assert costs.is_known(1, 0) and not costs.is_known(1, 1)
    assert costs.launch_s(1) == pytest.approx([0.5, 1.0, 1.5]), "others are as much faster, as far as is known"


def test_what_some_proposals_cost_tells_of_other_numbers_of_them() -> None:
    costs = LaunchCosts(FLAT)
    timed(costs, "a", 2, 6.0, SURELY)
    assert costs.launch_s(1) == pytest.approx([2.0, 4.0, 6.0]) and costs.is_known(1, 1)
    timed(costs, "a", 1, 3.0, SURELY - 1)
    assert costs.launch_s(1) == pytest.approx([2.0, 3.0, 6.0], rel=0.01)
    timed(costs, "a", 0, 1.0, SURELY - 1)
    assert costs.launch_s(1) == pytest.approx([1.0, 3.0, 6.0], rel=0.01)


@pytest.mark.parametrize("count", [FEW, 2 * FEW, 10 * FEW, 100 * FEW])
def test_how_kinds_compare_is_believed_the_more_the_more_launches_were_timed(count: int) -> None:
    """Those of another size say the same of this one."""
    costs = LaunchCosts(FLAT)
    now = timed(costs, "a", 0, 1.0, SURELY)
    timed(costs, "a", 1, 1.0, count, now)
    expected = 2.0 * 0.5 ** (count / (count + DOUBT))
    assert costs.launch_s(1)[1] == pytest.approx(expected) and 1.0 < expected < 1.2
    assert costs.launch_s(9)[1] == pytest.approx(expected)


def test_a_machine_that_has_become_slower_changes_no_comparison() -> None:
    costs = LaunchCosts(FLAT)
    timed(costs, "a" * 9, 1, 200.0, SURELY)
    assert [costs.launch_s(rows) for rows in (1, 9)] == [pytest.approx([100.0, 200.0, 300.0])] * 2
    assert costs.plain_s(9) == pytest.approx(100.0)


def test_the_nearest_size_tells_of_sizes_that_were_not_timed() -> None:
    costs = LaunchCosts(FLAT)
    timed(costs, "a", 0, 0.5, SURELY)
    timed(costs, "a" * 9, 0, 0.25, SURELY)
    assert [costs.launch_s(rows)[0] for rows in (1, 3, 4, 7, 8, 15, 100)] == pytest.approx([0.5] * 2 + [0.25] * 5)
    assert [costs.is_known(rows, 0) for rows in (1, 2, 8, 15, 16)] == [True, False, True, True, False]


@pytest.mark.parametrize("others", [("b", 1), ("a", 2), ("", 0), ("", 1)])
def test_a_launch_behind_one_of_another_kind_is_not_timed(others: tuple[str, int]) -> None:
    costs, now = LaunchCosts(FLAT), 0.0
    for _ in range(9 * FEW):
        for rows, num_steps in (("a", 1), others):
            now += 5.0
            costs.over(rows, num_steps, now)
    assert costs.launch_s(1) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("index", range(FEW + 1))
def test_a_launch_that_was_held_up_counts_a_little(index: int) -> None:
    costs, now = LaunchCosts(FLAT), 0.0
    costs.over("a", 0, now)
    for launch in range(FEW + 1):
        now += 1000.0 if launch == index else 1.0
        costs.over("a", 0, now)
    assert costs.launch_s(1)[0] == pytest.approx(1.0 + (MOST - 1.0) / (FEW + 1))


@pytest.mark.parametrize("num_held_up", [FEW, KEPT // 2, 3 * KEPT // 4 - 1])
def test_though_most_launches_are_held_up_it_counts_what_the_others_take(num_held_up: int) -> None:
    costs, now = LaunchCosts(FLAT), 0.0
    costs.over("a", 0, now)
    for launch in range(KEPT):
        now += 40.0 if launch < num_held_up else 1.0
        costs.over("a", 0, now)
    assert costs.launch_s(1)[0] == pytest.approx(1.0 + (MOST - 1.0) * num_held_up / KEPT)


def test_what_is_always_slow_now_and_then_counts() -> None:
    """Such as a launch that writes what others have put off."""
    costs, now = LaunchCosts(FLAT), 0.0
    for launch in range(3 * KEPT):
        now += 1.0 if launch % 4 else 1.2
        costs.over("a", 0, now)
    assert costs.launch_s(1)[0] == pytest.approx(1.05)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_launches_that_a_coarse_clock_cannot_tell_apart_are_not_timed(seconds: float) -> None:
    costs = LaunchCosts(FLAT)
    timed(costs, "a", 0, seconds, SURELY)
    timed(costs, "a", 1, seconds, SURELY, 1e6)
    assert not costs.is_known(1, 0) and costs.launch_s(1) == [1.0, 2.0, 3.0]


def test_only_the_newest_launches_count() -> None:
    costs = LaunchCosts(FLAT)
    now = timed(costs, "a", 0, 1.0, 50)
    for _ in range(KEPT):
        now += 0.5
        costs.over("a", 0, now)
    assert costs.launch_s(1)[0] == pytest.approx(0.5)


PLAINLY = StepCosts((1, 16), ((1.0, 2.0), (1.0, 2.0)), (0.5, 0.8))


def test_plain_launches_have_a_line_of_their_own() -> None:
    assert [PLAINLY.plain_s(rows) for rows in (1, 6, 16, 31)] == pytest.approx([0.5, 0.6, 0.8, 1.1])
    assert PLAINLY.launch_s(6) == [1.0, 2.0]
    assert USUAL.plain_s(4) == USUAL.launch_s(4)[0], "where they were not measured they are as quiet ones"
    assert StepCosts((1,), ((1.0, 2.0),), (0.7,)).plain_s(9) == 0.7


def test_until_plain_launches_are_timed_quiet_ones_correct_them() -> None:
    costs = LaunchCosts(PLAINLY)
    assert costs.plain_s(1) == 0.5
    now = timed(costs, "a", 0, 3.0, SURELY)
    assert costs.plain_s(1) == pytest.approx(1.5) and not costs.is_known(1, PLAIN)
    now = timed(costs, "a", PLAIN, 1.25, SURELY, now)
    assert costs.plain_s(1) == pytest.approx(1.25, rel=0.01) and costs.is_known(1, PLAIN)
    assert costs.launch_s(1)[0] == pytest.approx(3.0, rel=0.01)

    timed(costs, "a" * 16, 0, 0.2, SURELY, now)
    expected = 0.8 * 0.2 * (2.5 / 3.0)
    assert costs.plain_s(16) == pytest.approx(expected, rel=0.01), (
        "its size tells how slow it is, others how kinds differ"
    )


def test_a_plain_launch_that_was_not_timed_takes_no_longer_than_a_quiet_one() -> None:
    costs = LaunchCosts(StepCosts((1,), ((1.0, 2.0),), (4.0,)))
    assert costs.plain_s(1) == 1.0
    timed(costs, "a", PLAIN, 4.0, SURELY)
    assert costs.plain_s(1) == pytest.approx(4.0)


def test_launches_of_one_size_are_timed_if_a_choice_goes_on_from_one_to_the_other() -> None:
    """Where answers end often, hardly two launches have the same rows."""
    costs, now = LaunchCosts(FLAT), 0.0
    for launch in range(FEW + 1):
        now += 0.5
        costs.over(range(launch, launch + 5 + launch % 2), 1, now)
    assert costs.launch_s(5)[1] == pytest.approx(0.5)
    for launch in range(2 * FEW):
        now += 9.0
        costs.over(range(9 * launch, 9 * launch + 5), 1, now)
    assert costs.launch_s(5)[1] == pytest.approx(0.5), "no choice in common: time has passed between them"
