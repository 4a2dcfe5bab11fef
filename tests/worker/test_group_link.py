"""What the link to the other ranks hands on, and what it says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import GroupBroken
from protocol.messages_group import GroupPlace, RankBeat, RankHello, StepRow
from scheduler.agreement import Agreement
from tests.doubles.clock import VirtualClock
from worker import rank_sockets
from worker.group_link import BEAT_S, GroupLink
from worker.group_watch import COLLECTIVE_S
from worker.rank_sockets import RankSockets


class Bench:
    """Rank 0 of 2 with its link; the test is rank 1."""

    def __init__(self, folder: Path) -> None:
        self.own, self.other = (RankSockets(GroupPlace("d", 4, rank, 2), str(folder)) for rank in range(2))
        self.agreement, self.clock = Agreement(4, 0, 2), VirtualClock()
        self.running, self.doing = 0, ""
        self.link = GroupLink(self.own, self.agreement, self.clock, lambda: self.running, lambda: self.doing)

    def hear(self) -> None:
        """The link receives what the other rank has sent."""
        assert self.own.inbox.poll(60_000)
        self.link.receive()

    def heard(self) -> list[object]:
        """What the link has sent."""
        assert self.other.inbox.poll(60_000)
        return list(self.other.receive())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.link.close()
    made.other.close()
    assert made.own.inbox.closed


def test_rows_go_to_the_agreement_and_its_own_row_to_the_others(bench: Bench) -> None:
    bench.other.send(StepRow(4, 1, 1, 3))
    bench.hear()
    assert bench.agreement.is_called
    bench.agreement.announce(5)
    bench.link.flush()
    assert bench.heard() == [StepRow(4, 1, 0, 5)] and not bench.agreement.outgoing
    assert bench.agreement.shape is not None and bench.agreement.shape.num_tokens == (5, 3)


def test_a_beat_says_what_this_rank_has_launched_and_what_it_is_in(bench: Bench) -> None:
    bench.link.tick()
    assert bench.heard() == [RankBeat(4, 0, 0)]
    bench.other.send(StepRow(4, 1, 1, 3))
    bench.hear()
    bench.agreement.announce(5)
    bench.agreement.launched()
    bench.running, bench.doing = 1, "gather 3 of step 1"
    bench.clock.advance(BEAT_S)
    bench.link.tick()
    assert bench.heard() == [RankBeat(4, 0, 1, 1, "gather 3 of step 1")]


def test_two_rows_for_one_step_break_the_group(bench: Bench) -> None:
    bench.other.send(StepRow(4, 1, 1, 3))
    bench.hear()
    bench.other.send(StepRow(4, 1, 1, 5))
    with pytest.raises(GroupBroken, match="rank 1 announced step 1 twice: 3 tokens, then 5 tokens"):
        bench.hear()


def test_a_hello_in_mid_service_breaks_the_group(bench: Bench) -> None:
    bench.other.send(RankHello(bench.other.place, "1", ""))
    with pytest.raises(GroupBroken, match=r"^rank 1 has said hello again, although it serves$"):
        bench.hear()


def test_a_collective_that_waits_for_a_rank_which_never_comes_names_both(bench: Bench) -> None:
    bench.running, bench.doing = 2, "exchange 0 of step 2"

    def turn() -> None:
        bench.other.send(RankBeat(4, 1, 1))
        bench.hear()
        bench.link.tick()
        bench.clock.advance(0.25)

    for _ in range(int(COLLECTIVE_S / 0.25)):
        turn()
    with pytest.raises(GroupBroken, match=r"^rank 0 has been in exchange 0 of step 2 for 30 s; rank 1 runs no"):
        turn()


def test_it_waits_in_the_socket_on_which_the_others_speak(bench: Bench) -> None:
    assert bench.link.pollables() == (bench.own.inbox,)


def test_a_rank_may_end_once_all_have_said_that_they_rest_behind_the_same_step(bench: Bench) -> None:
    def tick() -> None:
        bench.clock.advance(BEAT_S)
        bench.link.tick()

    assert not bench.link.may_end(True), "it has told nobody"
    tick()
    assert bench.heard() == [RankBeat(4, 0, 0, rests=True)]
    assert not bench.link.may_end(True), "the other one has told nothing"

    bench.other.send(RankBeat(4, 1, 0))
    bench.hear()
    assert not bench.link.may_end(True), "the other one has work"
    bench.other.send(RankBeat(4, 1, 1, rests=True))
    bench.hear()
    assert not bench.link.may_end(True), "the other one has launched a step that this one has not"
    bench.other.send(RankBeat(4, 1, 0, rests=True))
    bench.hear()
    assert bench.link.may_end(True)

    assert not bench.link.may_end(False), "it has work again"
    tick()
    assert bench.heard() == [RankBeat(4, 0, 0)]
    assert not bench.link.may_end(True), "the others believe that it has work"


def test_the_last_beat_of_a_rank_that_ends_arrives(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a busy machine takes to connect the sockets."""
    monkeypatch.setattr(rank_sockets, "LINGER_MS", 60_000)
    bench.link.may_end(True)
    bench.link.tick()
    bench.link.close()
    assert bench.heard() == [RankBeat(4, 0, 0, rests=True)]
