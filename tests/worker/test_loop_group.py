"""Ranks of a group in one process: an idle one launches exactly when another has work, and a fault ends them all."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import GroupBroken
from tests.worker.ranks import Group, Rank
from worker.group_watch import SILENCE_S
from worker.loop import HEARTBEAT_S
from worker.parts import WorkerBroken

Make = Callable[..., Group]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Group] = []

    def make(size: int, **how: Any) -> Group:
        made.append(Group(size, tmp_path, **how))
        return made[-1]

    yield make
    for group in made:
        group.close()


def assert_sleeps(group: Group) -> None:
    """Nobody announces or launches anything, and no turn asks for another one, whatever the time."""
    counts, rows = [rank.counts for rank in group.ranks], group.num_rows
    for _ in range(20):
        group.clock.advance(HEARTBEAT_S)
        for rank in group.ranks:
            assert not rank.loop.turn(), f"{rank.name} has nothing to do and does not sleep"
        assert [rank.counts for rank in group.ranks] == counts and group.num_rows == rows
        for rank in group.ranks:  # before time goes on
            group.settle(rank)


def broken(group: Group, victims: tuple[Rank, ...]) -> dict[str, WorkerBroken]:
    """What each rank but the victims ends with, when time goes on."""
    error_of: dict[str, WorkerBroken] = {}
    survivors = [rank for rank in group.ranks if rank not in victims]
    for _ in range(60):
        group.clock.advance(HEARTBEAT_S)
        for rank in survivors:
            if rank.name in error_of:
                continue
            try:
                rank.loop.turn()
            except WorkerBroken as error:
                error_of[rank.name] = error
        for rank in survivors:  # before time goes on
            group.settle(rank)
        if len(error_of) == len(survivors):
            break
    return error_of


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("size, busy", [(2, 0), (2, 1), (3, 1)])
def test_idle_ranks_launch_exactly_when_another_one_has_work(size: int, busy: int, overlap: bool, make: Make) -> None:
    group = make(size, overlap=overlap)
    assert group.num_rows == 0, "nobody has work, and a step was announced"
    assert_sleeps(group)

    group.assign(busy, "a", (5, 6, 7), 9)
    group.run(lambda: len(group.answers["a"]) == 9)
    group.run_until_rest()
    assert group.answers["a"] == group.runner.expected_tokens((5, 6, 7), 9)
    num_launches, num_idle = group.ranks[busy].counts
    assert num_launches == 9 and num_idle == 0
    for rank in group.ranks:
        assert rank.counts == (num_launches, 0 if rank is group.ranks[busy] else num_launches)
        assert rank.sockets.sent["StepRow"] == num_launches
    assert_sleeps(group)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("size", [2, 3])
def test_an_idle_step_is_one_turn(size: int, overlap: bool, make: Make) -> None:
    """The turn that reads a row of another rank plans without rows, announces that, and launches what is agreed."""
    group = make(size, overlap=overlap)
    busy, *idle = group.ranks
    group.assign(0, "a", (5, 6, 7), 9)
    for step in range(1, 10):
        while busy.sockets.sent["StepRow"] < step:
            if not busy.loop.turn():
                group.wait()
        for rank in idle:
            group.settle(rank)
            rank.loop.turn()
            assert rank.counts == (step, step) and rank.sockets.sent["StepRow"] == step
            assert rank.agreement.step == step + (rank is idle[-1]), "the last one knows all rows"
        for rank in group.ranks:  # the others hear of the rest
            group.settle(rank)
            rank.core.planner.steps.go_on()
            assert rank.agreement.step == step + 1
    group.run(lambda: len(group.answers["a"]) == 9)
    assert group.answers["a"] == group.runner.expected_tokens((5, 6, 7), 9)


def test_ranks_that_all_have_work_share_their_steps(make: Make) -> None:
    group = make(3)
    wanted = {"a": (0, 5), "b": (1, 9), "c": (2, 3), "d": (1, 4)}
    for name, (rank, num_tokens) in wanted.items():
        group.assign(rank, name, (num_tokens, 7), num_tokens)
    group.run(lambda: all(len(group.answers[name]) == num_tokens for name, (_, num_tokens) in wanted.items()))
    group.run_until_rest()
    for name, (_, num_tokens) in wanted.items():
        assert group.answers[name] == group.runner.expected_tokens((num_tokens, 7), num_tokens)
    launches = {rank.counts[0] for rank in group.ranks}
    assert len(launches) == 1 and launches.pop() < 5 + 9 + 3 + 4
    assert_sleeps(group)


def test_a_group_works_again_after_it_was_idle(make: Make) -> None:
    group = make(2)
    for turn, rank in enumerate((0, 1, 0)):
        name = f"request {turn}"
        group.assign(rank, name, (turn, 3), 4)
        group.run(lambda name=name: len(group.answers[name]) == 4)  # type: ignore[misc]
        group.run_until_rest()
        assert_sleeps(group)
    assert [rank.counts for rank in group.ranks] == [(12, 4), (12, 8)]


def test_a_rank_that_sleeps_is_woken_by_the_first_row_of_another(make: Make) -> None:
    group = make(2)
    busy, sleeper = group.ranks
    group.assign(0, "a", (5, 6), 3)
    while not busy.sockets.sent["StepRow"]:
        busy.loop.turn()
    while sleeper.counts != (1, 1):
        sleeper.loop._poll(-1)  # no time-out: it returns because something has arrived, or never
        while sleeper.loop.turn():
            continue
    assert busy.agreement.step == 1, "it has not turned since, so it has launched nothing"


def test_ranks_beat_whether_they_have_work_or_not(make: Make) -> None:
    group = make(2)
    before = [rank.sockets.sent["RankBeat"] for rank in group.ranks]
    for _ in range(8):
        group.clock.advance(HEARTBEAT_S)
        for rank in group.ranks:
            rank.loop.turn()
        for rank in group.ranks:  # before time goes on
            group.settle(rank)
    assert [rank.sockets.sent["RankBeat"] - count for rank, count in zip(group.ranks, before, strict=True)] == [4, 4]


def test_a_silent_rank_ends_the_others_with_its_name_and_they_leave_the_gateway(make: Make) -> None:
    group = make(3)
    assert_sleeps(group)
    began = group.clock.now()
    error_of = broken(group, (group.ranks[1],))
    assert group.clock.now() - began <= SILENCE_S + HEARTBEAT_S
    assert set(error_of) == {"u.0", "u.2"}
    for error in error_of.values():
        assert error.at_device and error.message == "the ranks cannot go on together: rank 1 has been silent for 1.8 s"
        assert isinstance(error.__cause__, GroupBroken)
    while len(group.left) < 2:
        assert group.router.socket.poll(60_000)
        group._hear()
    assert sorted(group.left) == ["u.0", "u.2"]


def test_a_launch_that_fails_within_a_collective_ends_the_rank(make: Make) -> None:
    group = make(2)
    failing = group.ranks[0]
    failing.executor.device.group_error = GroupBroken("step 1 of rank 0: gather, step 2 of rank 1: exchange")
    with pytest.raises(WorkerBroken, match=r"gather, step 2 of rank 1: exchange") as caught:
        failing.loop.turn()
    assert caught.value.at_device
