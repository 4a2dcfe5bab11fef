"""Where a worker stands: by itself, or as one rank of a group. What differs between the two is made here."""

import random
from dataclasses import dataclass, replace
from typing import cast

from protocol.messages_group import GroupPlace
from runtime.clock import Clock
from scheduler.agreement import Agreement
from scheduler.execution.executor import Executor
from tests.doubles.hash_model import FakeRunner
from tests.explore.ranks import GRAPHED
from tests.explore_handoff.agenda import Agenda
from tests.explore_handoff.compute import TimedStream
from tests.explore_handoff.compute_ranks import RankStream
from tests.explore_handoff.groups import Group, Mailbox
from tests.explore_handoff.network import Host
from tests.explore_handoff.story import Story
from worker.group_link import GroupLink
from worker.parts import PeerLink
from worker.rank_sockets import RankSockets


class Seat:
    """Of a worker without a group."""

    group: Group | None = None
    place: GroupPlace | None = None
    agreement: Agreement | None = None

    def stream(self, agenda: Agenda, story: Story, host: Host, rng: random.Random, pace_s: float) -> TimedStream:
        """Its forward stream."""
        return TimedStream(agenda, story, host, rng, pace_s)

    def seated(self, runner: FakeRunner) -> FakeRunner:
        """The runner, which computes with the other ranks. Called after `stream`."""
        return runner

    def link(self, host: Host, executor: Executor, clock: Clock) -> PeerLink:
        """To the other ranks."""
        return PeerLink()


@dataclass
class RankSeat(Seat):
    """Of the next rank of a group."""

    group: Group

    def __post_init__(self) -> None:
        self.agreement = self.group.agree()
        size = self.group.collectives.size
        self.place = GroupPlace(self.group.name, self.group.epoch, self.agreement.rank, size)

    def stream(self, agenda: Agenda, story: Story, host: Host, rng: random.Random, pace_s: float) -> TimedStream:
        """See Seat."""
        streams = self.group.collectives.streams
        self._forward = RankStream(agenda, story, host, rng, pace_s, streams, self.group.hurts)
        return self._forward

    def seated(self, runner: FakeRunner) -> FakeRunner:
        """See Seat."""
        return replace(runner, collectives=self.group.collectives.join(self._forward), max_graphed=GRAPHED)

    def link(self, host: Host, executor: Executor, clock: Clock) -> PeerLink:
        """See Seat. From now on its launches are checked."""
        assert self.agreement is not None
        self.group.watch(executor)
        sockets = cast(RankSockets, Mailbox(self.group, host))
        return GroupLink(sockets, self.agreement, clock, lambda: executor.running_step, lambda: self._forward.doing)
