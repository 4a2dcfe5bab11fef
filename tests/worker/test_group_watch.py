"""Each row of the table in worker/group_watch.py."""

from typing import Any

import pytest

from protocol.errors import GroupBroken
from protocol.messages_group import RankBeat
from worker.group_watch import (
    ANNOUNCE_S,
    COLLECTIVE_S,
    JOIN_S,
    LATE_S,
    SILENCE_S,
    STUCK_S,
    TOGETHER_S,
    GroupWatch,
)

BEAT_S = 0.25


def beat(rank: int, step: int = 6, running: int = 0, doing: str = "", *, waits: bool = False) -> RankBeat:
    return RankBeat(1, rank, step, running, doing, waits=waits)


def waiting(rank: int, step: int, doing: str) -> RankBeat:
    """Its device waits in a collective of this step."""
    return beat(rank, step, step, f"{doing} of step {step}", waits=True)


class Bench:
    """The watch of rank 0 of 3, on a clock that goes from beat to beat."""

    def __init__(self) -> None:
        self.now = 100.0
        self.watch = GroupWatch(0, 3, self.now)

    def fault(self, seconds: float, *others: RankBeat, **how: Any) -> str:
        """The same, and what the watch raises; "" if nothing."""
        try:
            self.run(seconds, *others, **how)
        except GroupBroken as error:
            return error.message
        return ""

    def run(
        self,
        seconds: float,
        *others: RankBeat,
        own: RankBeat = beat(0),  # noqa: B008 - frozen
        step: int = 7,
        missing: tuple[int, ...] = (),
        turn_s: float = BEAT_S,
    ) -> None:
        """So long, `others` beat. Raises what the watch raises."""
        end = self.now + seconds
        while self.now < end:
            self.now += turn_s
            for other in others:
                self.watch.heard(other, self.now)
            self.watch.look(own, step, missing, self.now)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_ranks_that_beat_and_wait_for_nothing_go_on_for_ever(bench: Bench) -> None:
    assert not bench.fault(3 * JOIN_S, beat(1), beat(2))


def test_a_rank_that_falls_silent_is_named(bench: Bench) -> None:
    bench.run(1.0, beat(1), beat(2))
    bench.run(SILENCE_S - BEAT_S, beat(1))
    assert bench.fault(BEAT_S, beat(1)) == "rank 2 has been silent for 1.8 s"


def test_a_rank_that_has_not_served_yet_may_still_load_and_warm_up(bench: Bench) -> None:
    bench.run(JOIN_S - BEAT_S, beat(1))
    assert bench.fault(BEAT_S, beat(1)) == "rank 2 has not begun to serve within 300 s"


def test_silence_while_this_process_was_paused_does_not_count(bench: Bench) -> None:
    bench.run(1.0, beat(1), beat(2))
    bench.run(1.0, turn_s=60.0)  # one look, a minute later, before anything was read
    bench.run(SILENCE_S - BEAT_S)
    assert bench.fault(BEAT_S) == "rank 1 has been silent for 1.8 s"


def test_silence_does_not_count_while_this_process_is_starved(bench: Bench) -> None:
    assert not bench.fault(1.0, beat(1), beat(2))
    assert not bench.fault(60.0, turn_s=LATE_S + 0.01)


def test_a_rank_that_runs_nothing_and_announces_nothing_is_named_with_its_step(bench: Bench) -> None:
    bench.run(ANNOUNCE_S, beat(1), beat(2), missing=(2,))
    assert (
        bench.fault(BEAT_S, beat(1), beat(2), missing=(2,))
        == "rank 2 has not announced step 7 for 10 s, although it runs no launch"
    )


def test_this_rank_may_be_the_one_that_announces_nothing(bench: Bench) -> None:
    assert (
        bench.fault(2 * ANNOUNCE_S, beat(1), beat(2), missing=(0,))
        == "rank 0 has not announced step 7 for 10 s, although it runs no launch"
    )


def test_a_rank_that_computes_the_step_before_may_announce_late(bench: Bench) -> None:
    bench.run(60 * ANNOUNCE_S, beat(1), beat(2, running=6), missing=(2,))
    bench.run(ANNOUNCE_S, beat(1), beat(2), missing=(2,))  # its launch is over: from now on it counts
    assert (
        bench.fault(BEAT_S, beat(1), beat(2), missing=(2,))
        == "rank 2 has not announced step 7 for 10 s, although it runs no launch"
    )


def test_each_step_has_a_deadline_of_its_own(bench: Bench) -> None:
    for step in range(7, 20):
        assert not bench.fault(ANNOUNCE_S - BEAT_S, beat(1), beat(2), step=step, missing=(2,))


def test_a_rank_that_has_not_served_yet_announces_nothing_and_is_not_late(bench: Bench) -> None:
    assert not bench.fault(2 * ANNOUNCE_S, beat(1), missing=(2,))


def test_a_pause_of_this_process_does_not_make_another_rank_late(bench: Bench) -> None:
    assert not bench.fault(ANNOUNCE_S - BEAT_S, beat(1), beat(2), missing=(2,))
    assert not bench.fault(1.0, beat(1), beat(2), missing=(2,), turn_s=60.0)
    assert not bench.fault(ANNOUNCE_S - BEAT_S, beat(1), beat(2), missing=(2,))


@pytest.mark.parametrize(
    "others, named",
    [
        ((beat(1, 7, 7, "gather 3 of step 7"), beat(2, 7, 7)), "rank 2 is in no collective of step 7"),
        ((beat(1, 7, 7, "gather 3 of step 7"), beat(2, 6)), "rank 2 runs no launch after step 6"),
        (
            (beat(1, 7, 7, "exchange 2 of step 7"), beat(2, 7, 6, "gather 3 of step 6")),
            "rank 1 is in exchange 2 of step 7, rank 2 is in gather 3 of step 6",
        ),
        ((beat(1, 7, 7, "gather 3 of step 7"), beat(2, 7, 7, "gather 2 of step 7")), "rank 2 is in gather 2 of step 7"),
    ],
)
def test_a_collective_that_does_not_end_is_named_with_those_who_are_elsewhere(
    others: tuple[RankBeat, ...], named: str
) -> None:
    bench, own = Bench(), beat(0, 7, 7, "gather 3 of step 7")
    bench.run(COLLECTIVE_S, *others, own=own)
    assert bench.fault(BEAT_S, *others, own=own) == f"rank 0 has been in gather 3 of step 7 for 30 s; {named}"


def test_a_launch_may_take_long_while_it_goes_from_collective_to_collective() -> None:
    bench = Bench()
    for layer in range(20):
        own = beat(0, 7, 7, f"gather {layer} of step 7")
        assert not bench.fault(COLLECTIVE_S - BEAT_S, beat(1, 7, 7), beat(2, 7, 7), own=own)


def test_the_same_collective_of_the_next_step_begins_anew(bench: Bench) -> None:
    for step in range(7, 20):
        own = beat(0, step, step, f"gather 0 of step {step}")
        assert not bench.fault(COLLECTIVE_S - BEAT_S, beat(1, 7, 7), beat(2, 7, 7), own=own)


def test_a_forward_that_is_in_no_collective_waits_for_nobody(bench: Bench) -> None:
    assert not bench.fault(10 * COLLECTIVE_S, beat(1), beat(2), own=beat(0, 7, 7))


@pytest.mark.parametrize("doing", ["gather 3 of step 7", "the graph of step 7"])
def test_ranks_that_are_all_in_one_call_wait_for_nobody_else(doing: str, bench: Bench) -> None:
    beats = [beat(rank, 7, 7, doing) for rank in range(3)]
    bench.run(TOGETHER_S, *beats[1:], own=beats[0])
    assert bench.fault(BEAT_S, *beats[1:], own=beats[0]) == f"rank 0 has been in {doing} for 10 s; so have all others"


# ---- devices, which are in a collective although no call of the host has blocked ----

OWN = waiting(0, 7, "gather 3")


@pytest.mark.parametrize(
    "others, named",
    [
        ((waiting(1, 7, "gather 3"), waiting(2, 7, "gather 3")), "so have all others"),
        ((waiting(1, 7, "gather 3"), waiting(2, 7, "exchange 2")), "rank 2 is in exchange 2 of step 7"),
        ((waiting(1, 7, "gather 3"), waiting(2, 8, "gather 0")), "rank 2 is in gather 0 of step 8"),
        ((waiting(1, 7, "gather 3"), beat(2, 8, 8)), "rank 2 is in no collective of step 8"),
        ((waiting(1, 7, "gather 3"), beat(2, 7)), "rank 2 runs no launch after step 7"),
    ],
)
def test_a_device_that_no_other_rank_can_free_is_stuck(others: tuple[RankBeat, ...], named: str, bench: Bench) -> None:
    bench.run(STUCK_S, *others, own=OWN)
    assert bench.fault(BEAT_S, *others, own=OWN) == f"rank 0 has been in gather 3 of step 7 for 2 s; {named}"


@pytest.mark.parametrize(
    "other", [beat(2, 7, 7), beat(2, 7, 6), beat(2, 6), beat(2, 7, 7, "the graph of step 7"), beat(2, 7, 6, "gather 0")]
)
def test_a_device_waits_longer_for_a_rank_that_may_still_come(other: RankBeat, bench: Bench) -> None:
    """It computes a long prompt, or runs the step before, or has not launched this one."""
    assert not bench.fault(COLLECTIVE_S - BEAT_S, waiting(1, 7, "gather 3"), other, own=OWN)
    assert "rank 0 has been in gather 3 of step 7 for 30 s" in bench.fault(
        2 * BEAT_S, waiting(1, 7, "gather 3"), other, own=OWN
    )


def test_a_rank_that_computes_is_not_stuck_however_long_the_others_wait_for_it(bench: Bench) -> None:
    assert not bench.fault(10 * COLLECTIVE_S, waiting(1, 7, "gather 3"), waiting(2, 7, "gather 3"), own=beat(0, 7, 7))


def test_nobody_is_stuck_while_another_rank_goes_on(bench: Bench) -> None:
    """It is in a later collective each time, so it has left those before together with this rank, which will see so."""
    for layer in range(10):
        other = waiting(2, 7, f"gather {layer}")
        assert not bench.fault(STUCK_S - BEAT_S, waiting(1, 7, "gather 3"), other, own=OWN)


def test_nobody_is_stuck_for_a_rank_that_has_never_beaten(bench: Bench) -> None:
    assert not bench.fault(COLLECTIVE_S - BEAT_S, waiting(1, 7, "gather 3"), own=OWN)


def test_a_pause_of_this_process_makes_nobody_stuck(bench: Bench) -> None:
    others = (waiting(1, 7, "gather 3"), waiting(2, 7, "gather 3"))
    assert not bench.fault(STUCK_S - BEAT_S, *others, own=OWN)
    assert not bench.fault(60.0, *others, own=OWN, turn_s=60.0)
    assert not bench.fault(STUCK_S - BEAT_S, *others, own=OWN)


def test_a_rank_is_not_silent_while_collectives_go_on_with_it(bench: Bench) -> None:
    """It queues a long prompt, and its device takes kernels more slowly: this device leaves collectives meanwhile."""
    bench.run(BEAT_S, beat(1), beat(2))
    for layer in range(10):
        assert not bench.fault(SILENCE_S - BEAT_S, beat(1), own=waiting(0, 7, f"gather {layer}"))
    assert bench.fault(SILENCE_S, beat(1), own=waiting(0, 7, "gather 9")).startswith("rank 2 has been silent")


def test_a_rank_that_computes_alone_proves_nothing_of_a_silent_one(bench: Bench) -> None:
    bench.run(BEAT_S, beat(1), beat(2))
    assert bench.fault(SILENCE_S + BEAT_S, beat(1), own=beat(0, 7, 7)).startswith("rank 2 has been silent")
