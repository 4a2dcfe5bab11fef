"""A rank whose device waits for another rank for ever ends the group, although no call of its host has blocked.

The device is a recorder in the place of `torch.cuda`, the clock is virtual, the other rank is the test.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from model.collectives_torch import TorchCollectives
from protocol.errors import GroupBroken
from protocol.messages_group import GroupPlace, RankBeat, StepShape
from scheduler.agreement import Agreement
from tests.doubles.clock import VirtualClock
from tests.doubles.cuda_recorder import CudaRecorder
from worker.group_link import GroupLink
from worker.group_start import Sees
from worker.group_watch import COLLECTIVE_S, STUCK_S
from worker.rank_sockets import RankSockets

TURN_S = 0.25
PLACES = [GroupPlace("d", 4, rank, 2) for rank in range(2)]


class Queues:
    """A process group: it takes a call and returns at once, as NCCL does."""

    def alltoall_base(self, taken: Tensor, given: Tensor, *_: Any) -> "Queues":
        return self

    def wait(self) -> None:
        """The stream waits, not the host."""


class Bench:
    """Rank 0 of 2, which has launched step 7, and the sockets of rank 1."""

    def __init__(self, folder: Path, cuda: CudaRecorder) -> None:
        self.cuda, self.clock = cuda, VirtualClock()
        self.executor = SimpleNamespace(running_step=7, replayed_step=0)
        self.collectives = TorchCollectives(Queues(), PLACES[0], torch.device("cuda", 0))
        self.own, self.other = (RankSockets(index, str(folder)) for index in PLACES)
        agreement = Agreement(4, 0, 2)
        executor: Any = self.executor
        sees = Sees(self.collectives, executor)
        self.link = GroupLink(self.own, agreement, self.clock, sees.running, sees.doing, sees.waits)

    def queue_step(self, step: int) -> None:
        for _ in range(2):
            self.collectives.gather(torch.ones(3, 4), StepShape(step, (3, 3)))
            self.collectives.exchange(torch.ones(2, 3, 4), StepShape(step, (3, 3)))

    def turn(self, beat: RankBeat) -> None:
        self.clock.advance(TURN_S)
        self.other.send(beat)
        assert self.own.inbox.poll(60_000)
        self.link.receive()
        self.link.tick()

    def broken_after_s(self, beat: RankBeat) -> tuple[float, str]:
        """How long this rank goes on, and what it ends with."""
        begin = self.clock.now()
        while self.clock.now() < begin + 2 * COLLECTIVE_S:
            try:
                self.turn(beat)
            except GroupBroken as error:
                return self.clock.now() - begin, error.message
        raise AssertionError("it goes on for ever")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(tmp_path, CudaRecorder.installed(monkeypatch))
    yield made
    made.link.close()
    made.other.close()


def test_a_device_that_waits_for_a_rank_which_waits_elsewhere_is_noticed_within_three_seconds(bench: Bench) -> None:
    bench.cuda.hold()
    bench.queue_step(7)
    bench.cuda.reach(5)  # gather 0, exchange 0, and the event before gather 1
    after_s, reason = bench.broken_after_s(RankBeat(4, 1, 7, 7, "exchange 0 of step 7", waits=True))
    assert reason == "rank 0 has been in gather 1 of step 7 for 2 s; rank 1 is in exchange 0 of step 7"
    assert STUCK_S <= after_s <= 3.0 and bench.cuda.waits == []


def test_a_device_that_computes_a_long_prompt_ends_no_group(bench: Bench) -> None:
    """Its device has left gather 0 and not reached exchange 0; rank 1 has, and waits."""
    bench.cuda.hold()
    bench.queue_step(7)
    bench.cuda.reach(2)
    for _ in range(int(5 * COLLECTIVE_S / TURN_S)):
        bench.turn(RankBeat(4, 1, 7, 7, "exchange 0 of step 7", waits=True))
    assert bench.collectives.doing == "" and len(bench.cuda.held) == 6, "the device has gone no further"


def test_what_the_others_hear_is_where_the_device_is(bench: Bench) -> None:
    bench.cuda.hold()
    bench.queue_step(7)
    bench.cuda.reach(3)
    bench.link.tick()
    assert bench.other.inbox.poll(60_000)
    assert list(bench.other.receive()) == [RankBeat(4, 0, 0, 7, "exchange 0 of step 7", waits=True)]
