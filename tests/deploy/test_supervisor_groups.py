"""The supervisor with a group of ranks: it has one life."""

import pytest

from deploy.options import Rules
from deploy.sentences import Ended
from tests.deploy.paper_processes import Stage

RANKS = ["decode-0.0", "decode-0.1", "decode-0.2"]
NAMES = ["gateway", *RANKS]


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.removeprefix("baton: ") for line in capsys.readouterr().err.splitlines()]


def serve(stage: Stage, *names: str) -> None:
    for name in names:
        stage.processes.children[name].ready = {}
    stage.turns(1.0)


def test_a_group_is_started_again_as_one_and_serves_once_all_ranks_do(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(Rules(), NAMES)
    stage.end("decode-0.1", -9)
    assert stage.processes.starts == [(100.0, rank) for rank in RANKS]
    serve(stage, "decode-0.0", "decode-0.1")
    assert said(capsys) == [
        "error: decode-0.1 was killed by SIGKILL; group decode-0 of 3 ranks is started again at once"
    ]
    serve(stage, "decode-0.2")
    assert said(capsys) == ["decode-0 serves again after 2.0 s, restart 1"]


def test_each_start_of_a_group_is_another_epoch() -> None:
    stage = Stage(Rules(max_restarts=3), NAMES)
    for rank in ("decode-0.0", "decode-0.2", "decode-0.0"):
        stage.end(rank, 1, was_ready=False)
        stage.turns(4.0)
    assert stage.processes.epochs == [2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_failures_of_any_rank_count_and_the_group_is_given_up_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(Rules(max_restarts=2), NAMES)
    for rank in ("decode-0.0", "decode-0.2", "decode-0.1"):
        stage.end(rank, 1, was_ready=False)
        stage.turns(4.0)
    assert stage.supervisor.given_up == {"decode-0"}
    assert said(capsys)[-1] == (
        "error: decode-0.1 ended with exit status 1; group decode-0 of 3 ranks is given up after 2 restarts in a row."
        " decode-0 of 1 is missed"
    )
    assert len(stage.processes.starts) == 6


def test_the_pause_of_a_rank_costs_its_group_no_start(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(Rules(max_restarts=1), NAMES)
    for _ in range(4):
        stage.processes.pending.append(
            Ended("decode-0.0", 4, "", "rank 1 has been silent for 1.8 s", "group_broken", paused=("decode-0.1",))
        )
        stage.turns(4.0)
    assert not stage.supervisor.given_up and len(stage.processes.starts) == 12
    assert said(capsys)[-1] == (
        "error: decode-0.0 ended with exit status 4: rank 1 has been silent for 1.8 s; decode-0.1 was paused, so this"
        " does not count; group decode-0 of 3 ranks is started again at once"
    )


def test_the_rank_that_is_silent_for_longest_is_killed_alone() -> None:
    """The others may only wait for it. The launcher kills them when it has ended."""
    stage = Stage(Rules(hang_limit_s=10.0), NAMES)
    stage.processes.silent.add("decode-0.1")
    stage.turns(3.0)
    stage.processes.silent.update(RANKS)
    stage.turns(4.0)
    stage.processes.silent.remove("decode-0.0")
    stage.turns(10.0)
    assert set(stage.processes.killed) == {"decode-0.1"}


def test_a_rank_that_hangs_while_others_start_is_killed() -> None:
    stage = Stage(Rules(hang_limit_s=10.0), NAMES)
    stage.end("decode-0.1", -9)
    serve(stage, "decode-0.0")
    stage.processes.silent.add("decode-0.0")
    stage.turns(12.0)
    assert set(stage.processes.killed) == {"decode-0.0"}


def test_what_the_system_cannot_start_is_told_of_the_group(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(Rules(), NAMES)
    stage.processes.cannot_start = True
    stage.processes.pending.append(Ended("decode-0.1", -9, ""))
    stage.supervisor.turn()
    assert said(capsys)[1] == (
        "error: decode-0 cannot be started: no memory; group decode-0 of 3 ranks is started again in 0.5 s, restart 2"
        " in a row"
    )
    stage.processes.cannot_start = False
    stage.turns(1.0)
    assert stage.processes.epochs == [3, 3, 3]
