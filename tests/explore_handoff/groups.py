"""Groups of ranks in a world: what the ranks of one epoch share, what they tell one another, and how they end together.

    a rank ends: killed, refused, or because it sees that the group cannot go on
        ... some time later, the launcher kills the others ... the whole group starts again, under the next epoch

Messages between ranks stay on one host. They keep their order, and none is lost while both live.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from protocol.messages_gateway import Role
from protocol.messages_group import TO_RANK, StepRow, ToRank
from tests.doubles.collectives_simulated import SimulatedGroup
from tests.explore.ranks import RankBooks
from tests.explore_handoff.agenda import Agenda
from tests.explore_handoff.network import Host
from tests.explore_handoff.story import Story
from worker.group_watch import SILENCE_S

DELAYS_S = (0.0005, 0.0005, 0.02)  # of a message between ranks, at most
STARTS_S = 0.3  # between the first rank that turns and the last, at most
ENDS_S = (0.0, 0.05, 3.0)  # until the launcher has killed the others, at most; the last: they notice it themselves
HARMLESS_S = SILENCE_S - 0.75  # a pause that no rank takes for silence, as beats come every half second


@dataclass(eq=False, kw_only=True)
class Group(RankBooks):
    """One epoch. `hurt` is the first thing done to a rank that may end the group."""

    name: str
    role: Role
    agenda: Agenda
    rng: random.Random
    hurt: str = ""
    is_ending: bool = False
    mailboxes: list["Mailbox"] = field(default_factory=list)  # by rank

    def hurts(self, why: str) -> None:
        """Something was done to a rank of it."""
        self.hurt = self.hurt or why

    def paused(self, seconds: float) -> None:
        """One of its ranks does nothing for a while."""
        if seconds > HARMLESS_S:
            self.hurts("a rank was paused")


class Mailbox:
    """Stands for worker.rank_sockets.RankSockets of the next rank of a group."""

    inbox = None

    def __init__(self, group: Group, owner: Host) -> None:
        self._group, self._owner, self._rank = group, owner, len(group.mailboxes)
        self._arrived: deque[bytes] = deque()
        self._last_at = 0.0  # when the newest message arrives here
        group.mailboxes.append(self)

    def send(self, message: ToRank) -> None:
        """To all others."""
        if isinstance(message, StepRow):
            self._group.announced[self._rank] = message.step
        raw = TO_RANK.encode(message)
        for other in self._group.mailboxes:
            if other is not self:
                other._post(raw)

    def receive(self) -> list[ToRank]:
        """What has arrived, in order."""
        found = [TO_RANK.decode(raw) for raw in self._arrived]
        self._arrived.clear()
        return found

    def close(self) -> None:
        """Its process ends."""

    def _post(self, raw: bytes) -> None:
        agenda, rng = self._group.agenda, self._group.rng
        self._last_at = max(self._last_at, agenda.now + rng.choice(DELAYS_S) * rng.random())

        def arrive() -> None:
            self._arrived.append(raw)
            self._owner.wake()

        agenda.at(self._last_at, arrive)


class Rank(Host, Protocol):
    """A process that is a rank, as its launcher knows it."""

    @property
    def group(self) -> Group | None:
        """Its group; None: it has none."""
        ...

    @property
    def num_launches(self) -> int:
        """Plans that it has made."""
        ...


class Groups:
    """Those of a world. `start` starts the ranks of an epoch, `kill` ends one process for good."""

    def __init__(
        self,
        agenda: Agenda,
        story: Story,
        rng: random.Random,
        start: Callable[[Group], None],
        kill: Callable[[Group, bool], None],
    ) -> None:
        self.alive: list[Group] = []
        self.num_ending = 0
        self._agenda, self._story, self._rng = agenda, story, rng
        self._start, self._kill = start, kill
        self.killed_after_s: Callable[[], float] = lambda: rng.choice(ENDS_S) * rng.random()  # the others of one

    def begin(self, role: Role, name: str, size: int, epoch: int = 1) -> None:
        """All ranks of an epoch start."""
        group = Group(SimulatedGroup(size), epoch, name=name, role=role, agenda=self._agenda, rng=self._rng)
        self.alive.append(group)
        self._story.tell(self._agenda.now, name, f"starts {size} ranks, epoch {epoch}")
        self._start(group)

    def end(self, group: Group, restart_s: float, *, silently: bool) -> None:
        """A rank has ended, so all others will, and then they are started again. `silently`: their host is gone."""
        if group.is_ending:
            return
        group.is_ending = True
        self.num_ending += 1

        def again() -> None:
            self.num_ending -= 1
            self.begin(group.role, group.name, group.collectives.size, group.epoch + 1)

        def kill() -> None:
            self.alive.remove(group)
            self._story.fault(self._agenda.now, group.name, "group ended", f"epoch {group.epoch}: {group.hurt}")
            self._kill(group, silently)
            self._agenda.after(restart_s, again)

        if silently:
            kill()
        else:
            self._agenda.after(self.killed_after_s(), kill)

    def unrest(self) -> Iterator[str]:
        """Who waits for whom."""
        for group in self.alive:
            if said := group.stuck():
                yield f"group {group.name}: {said}"

    def check_rest(self, ranks: "list[Rank]") -> None:
        """What holds when nobody has work."""
        for group in self.alive:
            group.check_rest([rank.num_launches for rank in ranks if rank.group is group])
