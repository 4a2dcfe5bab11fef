"""Groups of ranks in one thread: who takes a turn, when a row arrives, and what becomes of a group that breaks.

    turn of a rank    take the rows that have come, step, post the rows that it announces

Rows between two ranks keep their order. A seed decides how long each is on its way, and how long a rank now and then
takes no turn. A group breaks when a target's forward fails on one rank: that rank ends at once, the others some turns
later, and ranks of a new epoch take their places and their requests.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from decode.worker import DecodeWorker
from model.runner import Runner
from prefill.worker import PrefillWorker
from protocol.errors import GroupBroken, WorkerLost
from protocol.messages_group import StepRow
from scheduler.agreement import Agreement
from scheduler.execution.executor import Executor
from scheduler.execution.streams import Stream
from tests.answers import choices_of
from tests.cluster import Cluster, Worker
from tests.doubles.collectives_simulated import GroupLog
from tests.doubles.hash_model import FakeRunner
from tests.explore.ranks import RankBooks

DELAYS = (0, 0, 0, 0, 0, 1, 2, 8)  # turns of a row on its way
NAPS = (2, 5, 20)  # turns that a rank takes no part in
ENDS = (0, 2, 10)  # turns until the other ranks of a broken group end
FIRST_OF = {"P": 100, "D": 200, "U": 300}  # instances
EPOCH = 1_000  # what a new epoch adds to them
ADDS: dict[str, Callable[[Cluster, str, int], Worker]] = {
    "P": Cluster.add_prefill,
    "D": Cluster.add_decode,
    "U": Cluster.add_unified,
}


@dataclass(eq=False)
class Group(RankBooks):
    """One epoch of the group of all workers of one kind."""

    mail: dict[tuple[int, int], deque[tuple[int, StepRow]]] = field(default_factory=dict)  # (from, to): (due turn, row)
    naps_until: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))  # by rank
    failing: set[int] = field(default_factory=set)  # ranks on which a forward was made to fail
    dead: set[int] = field(default_factory=set)  # ranks
    ends_at: int | None = None  # a turn; None: it is not broken

    def post(self, rank: int, due: Callable[[], int]) -> None:
        """Sends the rows that a rank has announced to the others."""
        outgoing = self.agreements[rank].outgoing
        for row in outgoing:
            self.announced[rank] = row.step
            for other in range(self.collectives.size):
                if other != rank:
                    link = self.mail.setdefault((rank, other), deque())
                    link.append((max(due(), link[-1][0] if link else 0), row))
        outgoing.clear()

    def deliver(self, rank: int, turn: int) -> None:
        """Gives a rank the rows that have come."""
        for (_, to), link in self.mail.items():
            while to == rank and link and link[0][0] <= turn:
                self.agreements[rank].take(link.popleft()[1])

    def waits_for_turns(self, turn: int) -> bool:
        """Whether it goes on when turns pass, and nothing else need happen."""
        return (
            self.ends_at is not None or any(self.mail.values()) or any(turn < end for end in self.naps_until.values())
        )


class Groups:
    """The groups of one run, by the kind of their workers."""

    def __init__(
        self, sizes: dict[str, int], meets: Callable[[int], GroupLog[Any]], kills: Callable[[Stream], None], seed: int
    ) -> None:
        """`meets` makes the collectives of so many ranks. `kills` ends a stream of theirs."""
        self.by_kind: dict[str, Group] = {}
        self.num_restarts = 0
        self.restarted: Callable[[Sequence[Worker]], None] = lambda workers: None  # called with those of a new epoch
        self._sizes, self._meets, self._kills = sizes, meets, kills
        self._ended: list[Group] = []
        self._rng, self._turn = random.Random(f"ranks {seed}"), 0
        self._at_rest: list[int] | None = None  # launches of each worker, if the step before ended at rest
        self._naps = self._rng.choice((0.0, 0.005, 0.02))

    def seat(self, kind: str, runner: Runner, forward: Stream) -> tuple[Runner, Agreement | None]:
        """The next rank of the group of this kind of worker, if there is one."""
        if kind not in self._sizes:
            return runner, None
        assert isinstance(runner, FakeRunner)
        group = self.by_kind.setdefault(kind, Group(self._meets(self._sizes[kind]), 1))
        return replace(runner, collectives=group.collectives.join(forward)), group.agree()

    @property
    def num_idle(self) -> int:
        """Launches of a rank without tokens."""
        return sum(group.num_idle for group in (*self._ended, *self.by_kind.values()))

    def attach(self, cluster: Cluster) -> None:
        """Takes the workers' turns from now on."""
        self._cluster = cluster
        cluster.take_turn, cluster.retried = self.turn, frozenset((WorkerLost.code,))

    def place(self, worker: Worker) -> tuple[Group, int] | None:
        """The group of a worker, and its rank."""
        group = self.by_kind.get(kind_of(worker))
        return None if group is None else (group, self._cluster.executor(worker).device.rank)

    def turn(self, worker: Worker) -> bool:
        """A worker goes on, unless it takes a nap or has ended. Whether there was anything to do."""
        if (place := self.place(worker)) is None:
            return worker.turn()
        group, rank = place
        if rank in group.dead:
            return False
        if self._takes_nap(group, rank):
            return False
        try:
            group.deliver(rank, self._turn)
            progressed = worker.turn()
        except GroupBroken:
            if rank not in group.failing:
                raise
            group.dead.add(rank)
            group.ends_at = group.ends_at or self._turn + self._rng.choice(ENDS)
            return True
        group.post(rank, lambda: self._turn + self._rng.choice(DELAYS))
        return progressed

    def _takes_nap(self, group: Group, rank: int) -> bool:
        if self._turn >= group.naps_until[rank] and self._rng.random() < self._naps:
            group.naps_until[rank] = self._turn + self._rng.choice(NAPS)
        return self._turn < group.naps_until[rank]

    def fails(self, executor: Executor) -> bool:
        """The target's forward is about to fail. Whether that breaks a group."""
        if (group := self._group_of(executor)) is not None:
            group.failing.add(executor.device.rank)
        return group is not None

    def after_step(self) -> None:
        """What holds after each step; groups whose time has come end."""
        self._turn += 1
        counts = [worker.planner.num_launches for worker in self._cluster.workers] if self._cluster.at_rest() else None
        assert None in (counts, self._at_rest) or counts == self._at_rest, "a group at rest launches"
        self._at_rest = counts
        for kind, group in list(self.by_kind.items()):
            if group.ends_at is None:
                group.check()
            elif group.ends_at <= self._turn:
                self._restart(kind, group)

    def watch(self, executor: Executor) -> None:
        """Checks what this executor launches, if it is a rank's."""
        if (group := self._group_of(executor)) is not None:
            group.watch(executor)

    def wake(self) -> None:
        """No rank takes a nap from now on: each takes what has come for it."""
        self._naps = 0.0
        for group in self.by_kind.values():
            group.naps_until.clear()

    def check_rest(self) -> None:
        """At rest all ranks have launched the same steps, and entered the same collectives."""
        for kind, group in self.by_kind.items():
            counts = [worker.planner.num_launches for worker in self._cluster.workers if kind_of(worker) == kind]
            group.check_rest(counts)

    def stuck(self) -> str:
        """Who waits for whom, behind a colon; "" if no rank waits for another."""
        return "".join(f": {said}" for group in self.by_kind.values() if (said := group.stuck()))

    @property
    def wait_for_turns(self) -> bool:
        """Whether a group goes on when turns pass: a rank takes a nap, a row is on its way, or it is about to end."""
        return any(group.waits_for_turns(self._turn) for group in self.by_kind.values())

    @property
    def are_ending(self) -> bool:
        """Whether a broken group is about to end."""
        return any(group.ends_at is not None for group in self.by_kind.values())

    def _restart(self, kind: str, group: Group) -> None:
        """The processes of a group are killed. Others take their places; the gateway begins their requests again."""
        cluster = self._cluster
        lost = [worker for worker in cluster.workers if kind_of(worker) == kind]
        group.collectives.end()
        for worker in lost:
            device = cluster.executor(worker).device
            for stream in {id(each): each for each in (device.forward, device.schedule, device.staging)}.values():
                self._kills(stream)
        self.num_restarts += 1
        self._ended.append(group)
        self.by_kind[kind] = Group(self._meets(group.collectives.size), group.epoch + 1)

        if kind == "U":
            cluster.unifieds.clear()
        for index in range(len(lost)):
            add, instance = ADDS[kind], FIRST_OF[kind] + EPOCH * group.epoch + index
            add(cluster, f"{kind}{index}", instance)
        for instance in [each for each, worker in cluster.prefills.items() if worker in lost]:
            cluster.lose_prefill(instance)
        for instance in [each for each, worker in cluster.decodes.items() if worker in lost]:
            cluster.lose_decode(instance)
        self.restarted([worker for worker in cluster.workers if kind_of(worker) == kind])
        self._begin_again(lost)
        for worker in cluster.decodes.values():
            cluster._deliver(worker)  # what has failed with its prefill worker

    def _begin_again(self, lost: Sequence[Worker]) -> None:
        """The choices that were at these workers go on elsewhere. Those of a prefill worker fail at decode first."""
        cluster = self._cluster
        for request_id, attempts in cluster.attempts.items():
            for choice in range(attempts[0][1].num_choices):
                worker = next(worker for worker, assign in reversed(attempts) if choice in choices_of(assign))
                if worker in lost and request_id not in cluster.failures:
                    cluster.begin_again(request_id, choice)

    def _group_of(self, executor: Executor) -> Group | None:
        forward = executor.device.forward
        return next((each for each in self.by_kind.values() if forward in each.collectives.streams), None)


def kind_of(worker: Worker) -> str:
    """The letter of the worker's kind in a topology."""
    return "P" if isinstance(worker, PrefillWorker) else "D" if isinstance(worker, DecodeWorker) else "U"
