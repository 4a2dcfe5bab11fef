"""The supervisor with processes that exist on paper only, in time that moves only when told."""

import pytest

from deploy.life import State
from deploy.options import Rules
from deploy.sentences import Ended
from protocol.messages_gateway import Role
from runtime.process_life import EXIT_CONFIG, EXIT_REFUSED
from runtime.supervision import STATES, UnitNews, describe_unit
from tests.deploy.paper_processes import Stage

NAMES = ("gateway", "decode-0")


def staged(rules: Rules) -> Stage:
    return Stage(rules, NAMES)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.removeprefix("baton: ") for line in capsys.readouterr().err.splitlines()]


@pytest.fixture
def stage() -> Stage:
    return staged(Rules())


def test_a_crash_is_mended_at_once_and_told(capsys: pytest.CaptureFixture[str], stage: Stage) -> None:
    stage.end("decode-0", -9)
    assert stage.processes.starts == [(100.0, "decode-0")]
    stage.turns(3.0)
    stage.processes.children["decode-0"].ready = {}
    stage.turns(1.0)
    assert said(capsys) == [
        "error: decode-0 was killed by SIGKILL; it is started again at once",
        "decode-0 serves again after 4.0 s, restart 1",
    ]


def test_waits_grow_to_the_second_then_it_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(Rules(max_restarts=4))
    ends = []
    for _ in range(5):
        ends.append(stage.clock.now())
        stage.end("decode-0", 1, was_ready=False)
        stage.turns(4.0)
    starts = [when for when, _ in stage.processes.starts]
    assert [start - end for start, end in zip(starts, ends[:4], strict=True)] == [0.0, 0.5, 1.0, 2.0]
    assert stage.supervisor.given_up == {"decode-0"}
    lines = said(capsys)
    assert lines[1] == "error: decode-0 ended with exit status 1; it is started again in 0.5 s, restart 2 of 4 in a row"
    assert lines[4] == (
        "error: decode-0 ended with exit status 1; it is given up after 4 restarts in a row. decode-0 of 1 is missed"
    )


def test_a_pause_is_mended_at_once_and_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(Rules(max_restarts=2))
    missed = Ended("decode-0", 3, "", "it was silent for 2.0 s", "refused", paused=("decode-0",))
    for number in range(9):
        stage.processes.pending.append(missed)
        stage.supervisor.turn()
        assert len(stage.processes.starts) == number + 1, "at once"
        stage.turns(3.0)
    assert not stage.supervisor.given_up
    assert set(said(capsys)) == {
        "error: decode-0 ended with exit status 3: it was silent for 2.0 s; decode-0 was paused, so this does not"
        " count; it is started again at once"
    }
    stage.end("decode-0", -9)
    assert said(capsys) == ["error: decode-0 was killed by SIGKILL; it is started again at once"], "the first failure"


@pytest.mark.parametrize(
    "ended",
    (
        Ended("gateway", EXIT_CONFIG, "", "tokenizer.json is no JSON", "checkpoint_error", was_ready=False),
        Ended("gateway", EXIT_CONFIG, "", "", "", was_ready=False),
        Ended("gateway", EXIT_REFUSED, "", "its model differs", "refused", was_ready=False),
    ),
)
def test_who_has_served_is_started_again_whatever_a_start_says(
    ended: Ended, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder may be away, or being written, for a while."""
    stage = staged(Rules())
    stage.end("gateway", -15)
    for failure in range(9):
        stage.processes.pending.append(ended)
        stage.turns(40.0)
        assert len(stage.processes.starts) == 2 + failure and not stage.supervisor.given_up
    waits = [f"in {wait_s:g} s, restart" for wait_s in (0.5, 1, 2, 4, 8, 16, 30, 30, 30)]
    assert all(wait in line for wait, line in zip(waits, said(capsys)[1:], strict=True))


def test_what_the_system_cannot_start_counts_as_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(Rules(max_restarts=2))
    stage.processes.cannot_start = True
    stage.end("decode-0", -9)
    stage.processes.cannot_start = False
    stage.turns(2.0)
    assert stage.processes.starts == [(100.5, "decode-0")]
    assert (
        said(capsys)[1]
        == "error: decode-0 cannot be started: no memory; it is started again in 0.5 s, restart 2 of 2 in a row"
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_falls_silent_is_killed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(Rules(hang_limit_s=10.0))
    stage.turns(5.0)
    stage.processes.silent.add(name)
    stage.turns(10.0)
    assert stage.processes.killed == {}
    stage.turns(1.0)
    assert stage.processes.killed == {name: "gave no sign of life for 11 s"}
    stage.processes.pending.append(Ended(name, -9, "", killed_because=stage.processes.killed[name]))
    stage.turns(1.0)
    assert [who for _, who in stage.processes.starts] == [name]
    assert said(capsys)[0] == f"error: {name} gave no sign of life for 11 s and was killed; it is started again at once"


def test_silence_means_nothing_where_there_was_no_sign_or_no_limit() -> None:
    patient = staged(Rules(hang_limit_s=0.0))
    patient.processes.silent.update(NAMES)
    patient.turns(100.0)
    quiet = staged(Rules())
    quiet.processes.silent.update(NAMES)
    quiet.processes.beat_no_more()
    quiet.turns(700.0)
    assert patient.processes.killed == quiet.processes.killed == {}


def test_a_start_without_any_news_does_not_last_for_ever() -> None:
    stage = staged(Rules())
    stage.processes.beat_no_more()
    stage.end("decode-0", -9)
    stage.processes.silent.add("decode-0")
    stage.turns(599.0)
    assert stage.processes.killed == {}
    stage.turns(3.0)
    assert set(stage.processes.killed) == {"decode-0"}


def test_its_own_pause_is_nobodys_silence() -> None:
    stage = staged(Rules(hang_limit_s=10.0))
    stage.turns(2.0)
    stage.processes.silent.update(NAMES)
    stage.clock.advance(60.0)
    stage.turns(9.0)
    assert stage.processes.killed == {}
    stage.turns(3.0)
    assert set(stage.processes.killed) == set(NAMES)


def test_serving_again_is_counted_from_the_first_end(capsys: pytest.CaptureFixture[str]) -> None:
    stage = staged(Rules())
    stage.end("decode-0", -9)
    stage.turns(4.0)
    stage.end("decode-0", 1, was_ready=False)
    stage.turns(4.0)
    stage.processes.children["decode-0"].ready = {}
    took = stage.clock.now() - 100.0
    stage.turns(0.5)
    assert said(capsys)[-1] == f"decode-0 serves again after {took + 1.0:.1f} s, restart 2"


def test_who_has_ended_is_not_killed_for_its_silence() -> None:
    stage = staged(Rules(max_restarts=0))
    stage.end("decode-0", -9)
    stage.processes.silent.add("decode-0")
    stage.turns(100.0)
    assert stage.supervisor.given_up == {"decode-0"}
    assert stage.processes.killed == {}


def test_what_was_told_to_end_is_not_started_again(capsys: pytest.CaptureFixture[str], stage: Stage) -> None:
    stage.end("decode-0", 0)
    stage.processes.silent.add("decode-0")
    stage.turns(700.0)
    assert stage.processes.starts == [] and stage.processes.killed == {}
    assert stage.supervisor.left == {"decode-0"} and not stage.supervisor.given_up
    assert said(capsys) == ["decode-0 has left. decode-0 of 1 is missed"]


def test_what_had_to_start_again_may_be_told_to_end_meanwhile(stage: Stage) -> None:
    stage.end("decode-0", -9)
    stage.end("decode-0", 0, was_ready=False)
    stage.turns(100.0)
    assert [who for _, who in stage.processes.starts] == ["decode-0"] and stage.supervisor.left == {"decode-0"}


# ---- what the gateway is told ----

PAIR = ("gateway", "prefill-0", "decode-0")
ROLES = {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE}


def pair(rules: Rules) -> Stage:
    stage = Stage(rules, PAIR, ROLES)
    stage.processes.children["gateway"].ready = {}
    return stage


def told(stage: Stage) -> list[UnitNews]:
    """What the gateway was told since the last call."""
    gateway = stage.processes.children["gateway"]
    told_now, gateway.told = gateway.told, []
    return told_now


def test_the_states_that_are_told_are_those_of_a_life() -> None:
    assert {state.value for state in State} == set(STATES)


def test_the_gateway_is_told_each_change_once_in_the_words_of_the_console(capsys: pytest.CaptureFixture[str]) -> None:
    stage = pair(Rules(max_restarts=2))
    stage.turns(3.0)
    assert [(news.unit, news.role, news.state) for news in told(stage)] == [
        ("prefill-0", Role.PREFILL, "running"),
        ("decode-0", Role.DECODE, "running"),
    ]
    for state in ("starting", "backing off", "given up"):
        capsys.readouterr()
        stage.end("decode-0", -9)
        [news] = told(stage)
        assert (news.unit, news.state) == ("decode-0", state)
        if state != "starting":  # that one was started again at once
            assert describe_unit(news, "it", news.since) in said(capsys)[0]
        stage.turns(1.0)
        later = [change.state for change in told(stage)]
        assert later == (["starting"] if state == "backing off" else [])


def test_a_gateway_that_is_started_again_is_told_all_once_it_serves() -> None:
    stage = pair(Rules())
    stage.turns(1.0)
    assert len(told(stage)) == 2
    before = stage.processes.children["gateway"]
    stage.end("decode-0", -9)
    stage.end("gateway", -9)
    stage.turns(2.0)
    gateway = stage.processes.children["gateway"]
    assert gateway is not before and not gateway.told, "it does not serve yet"
    gateway.ready = {}
    stage.turns(2.0)
    assert [(news.unit, news.state) for news in told(stage)] == [("prefill-0", "running"), ("decode-0", "starting")]


def test_what_the_gateway_cannot_take_is_told_later_as_it_is_then() -> None:
    stage = pair(Rules())
    stage.turns(1.0)
    told(stage)
    stage.processes.children["gateway"].is_deaf = True
    stage.end("decode-0", -9)
    stage.turns(1.0)
    stage.end("decode-0", -9)
    assert told(stage) == []
    stage.processes.children["gateway"].is_deaf = False
    stage.turns(0.3)
    assert [news.unit for news in told(stage)] == ["decode-0"]


def test_without_workers_nothing_is_told() -> None:
    stage = Stage(Rules(), ("u",))
    stage.end("u", -9)
    stage.turns(2.0)
    assert [name for _, name in stage.processes.starts] == ["u"]


RANKS = ["decode-0.0", "decode-0.1", "decode-0.2"]
WITH_RANKS = ["gateway", *RANKS]


def serve(stage: Stage, *names: str) -> None:
    for name in names:
        stage.processes.children[name].ready = {}
    stage.turns(1.0)


def test_a_group_is_started_again_as_one_and_serves_once_all_ranks_do(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(Rules(), WITH_RANKS)
    stage.end("decode-0.1", -9)
    assert stage.processes.starts == [(100.0, rank) for rank in RANKS]
    serve(stage, "decode-0.0", "decode-0.1")
    assert said(capsys) == [
        "error: decode-0.1 was killed by SIGKILL; group decode-0 of 3 ranks is started again at once"
    ]
    serve(stage, "decode-0.2")
    assert said(capsys) == ["decode-0 serves again after 2.0 s, restart 1"]


def test_each_start_of_a_group_is_another_epoch() -> None:
    stage = Stage(Rules(max_restarts=3), WITH_RANKS)
    for rank in ("decode-0.0", "decode-0.2", "decode-0.0"):
        stage.end(rank, 1, was_ready=False)
        stage.turns(4.0)
    assert stage.processes.epochs == [2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_failures_of_any_rank_count_and_the_group_is_given_up_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(Rules(max_restarts=2), WITH_RANKS)
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
    stage = Stage(Rules(max_restarts=1), WITH_RANKS)
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
    stage = Stage(Rules(hang_limit_s=10.0), WITH_RANKS)
    stage.processes.silent.add("decode-0.1")
    stage.turns(3.0)
    stage.processes.silent.update(RANKS)
    stage.turns(4.0)
    stage.processes.silent.remove("decode-0.0")
    stage.turns(10.0)
    assert set(stage.processes.killed) == {"decode-0.1"}


def test_a_rank_that_hangs_while_others_start_is_killed() -> None:
    stage = Stage(Rules(hang_limit_s=10.0), WITH_RANKS)
    stage.end("decode-0.1", -9)
    serve(stage, "decode-0.0")
    stage.processes.silent.add("decode-0.0")
    stage.turns(12.0)
    assert set(stage.processes.killed) == {"decode-0.0"}


def test_what_the_system_cannot_start_is_told_of_the_group(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(Rules(), WITH_RANKS)
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
