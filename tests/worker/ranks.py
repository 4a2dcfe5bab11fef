"""A group of ranks in one process: real loops, cores and sockets, turned one after the other. The test is the gateway.

Time stands still unless a test moves it.
"""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import zmq

from model.paged_kv import PagedKv
from protocol.messages_gateway import (
    TO_GATEWAY,
    TO_WORKER,
    Assign,
    Heartbeat,
    Left,
    Register,
    SamplingParams,
    ToGateway,
    Tokens,
    Welcome,
    WorkerAddress,
)
from protocol.messages_group import GroupPlace, ToRank
from runtime.bus import Dealer, Router, Wake
from runtime.clock import MonotonicClock
from runtime.session import Session, open_envelope
from scheduler.agreement import Agreement
from scheduler.execution.executor import Executor
from scheduler.execution.streams import InlineStream
from scheduler.planning.kv_manager import KvManager
from scheduler.planning.planner import Planner
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner
from tests.worker.conftest import REGISTER
from tests.worker.stopping import Stop
from unified.worker import UnifiedWorker
from worker.gateway_link import GatewayLink
from worker.group_link import GroupLink
from worker.loop import WorkerLoop
from worker.parts import PeerLink, Surroundings
from worker.policies import Policies
from worker.rank_sockets import RankSockets

EPOCH = 4
NUM_PAGES = 64
PAGE_SIZE = 4
ROUNDS = 5_000  # of turns of all ranks, which no test needs


class CountedSockets(RankSockets):
    """Counts what it sends, by kind, and what it receives."""

    def __init__(self, own: GroupPlace, folder: str) -> None:
        super().__init__(own, folder)
        self.sent: Counter[str] = Counter()
        self.num_received = 0

    def send(self, message: ToRank) -> None:
        self.sent[type(message).__name__] += 1
        super().send(message)

    def _read(self, raw: bytes) -> ToRank:
        self.num_received += 1
        return super()._read(raw)


class Rank:
    """One rank, a unified worker that serves the model of hashes."""

    def __init__(self, group: "Group", rank: int, *, overlap: bool) -> None:
        self.name = f"u.{rank}"
        size = group.size
        self.sockets = CountedSockets(GroupPlace("u", EPOCH, rank, size), str(group.folder))
        self.agreement = Agreement(EPOCH, rank, size)
        runner, layout = group.runner, group.runner.kv_layout(PAGE_SIZE)
        kv_manager = KvManager(NUM_PAGES, PAGE_SIZE, max_requests=8, max_context=128)
        self.executor = Executor(
            runner,
            PagedKv(layout, NUM_PAGES),
            num_rows=kv_manager.rows.num_rows,
            max_pages=kv_manager.max_pages,
            forward=InlineStream(),
            schedule=InlineStream(),
            debug=True,
            rank=rank,
            num_ranks=size,
        )
        self.core = UnifiedWorker(
            Planner(kv_manager, self.executor, layout, runner.config.vocab_size, agreement=self.agreement),
            self.name,
            group.clock,
            Policies(overlap, 32),
        )
        self.link: PeerLink | None = None
        self.identity = f"{self.name}#{100 + rank}".encode()
        self.gateway = Dealer(group.context, group.router.endpoint, self.identity)
        self.wake, self.stop = Wake(), Stop()
        self._register = replace(REGISTER, address=WorkerAddress(self.name, 100 + rank))

    def serve(self, clock: VirtualClock) -> None:
        """Begins to hear of steps, as a worker does when it has loaded."""
        self.link = GroupLink(self.sockets, self.agreement, clock, lambda: self.executor.running_step)
        stop: Any = self.stop
        self.loop = WorkerLoop(
            self.core,
            PeerLink(),
            GatewayLink(self.gateway, clock),
            self._register,
            Surroundings(stop, self.wake, clock, ranks=self.link),
            lambda: None,
        )
        self.loop.gateway.begin()

    @property
    def counts(self) -> tuple[int, int]:
        """Launches, and how many of them without rows."""
        planner = self.core.planner
        return planner.num_launches, planner.num_idle

    def close(self) -> None:
        self.sockets.close()
        self.gateway.close()
        self.wake.close()
        self.stop.close()


class Group:
    """`size` ranks that have met, and serve."""

    def __init__(self, size: int, folder: Path, *, overlap: bool = True) -> None:
        self.size, self.folder = size, folder
        self.runner = FakeRunner(context_length=128)
        self.clock = VirtualClock()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = Router(self.context, "127.0.0.1")
        self.sessions: dict[bytes, Session] = {}
        self.members: set[bytes] = set()
        self.left: list[str] = []
        self.answers: dict[str, list[int]] = {}
        self.num_beats: Counter[bytes] = Counter()  # of each worker, to the gateway
        self.ranks = [Rank(self, rank, overlap=overlap) for rank in range(size)]
        self._meet()
        for rank in self.ranks:
            rank.serve(self.clock)
        self.run(lambda: len(self.members) == size)

    def _meet(self) -> None:
        def meet(rank: Rank) -> bool:
            stop: Any = rank.stop
            return rank.sockets.meet("model", stop, MonotonicClock())

        with ThreadPoolExecutor(self.size) as pool:
            assert all(pool.map(meet, self.ranks))

    def assign(self, rank: int, request_id: str, prompt: tuple[int, ...], num_tokens: int) -> None:
        """A client's request, to this rank."""
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        self.answers[request_id] = []
        raw = TO_WORKER.encode(Assign(request_id, 0, prompt, sampling, 1, None))
        identity = self.ranks[rank].identity
        assert self.router.send(identity, self.sessions[identity].seal(raw))

    def run(self, until: Callable[[], bool]) -> None:
        """Turns all ranks until it is so. It waits in the ranks' sockets when nobody has anything to do."""
        for _ in range(ROUNDS):
            progressed = [rank.loop.turn() for rank in self.ranks]
            self._hear()
            if until():
                return
            if not any(progressed):
                self.wait()
        raise AssertionError("it never came to be")

    def wait(self) -> None:
        """Until something arrives somewhere, but not for long: it may have arrived already."""
        poller = zmq.Poller()
        sockets = [self.router.socket, *(rank.gateway.socket for rank in self.ranks)]
        for socket in (*sockets, *(rank.sockets.inbox for rank in self.ranks)):
            poller.register(socket, zmq.POLLIN)
        poller.poll(20)

    def settle(self, rank: Rank) -> None:
        """Until the rank has heard all that the others have said."""
        others = [other for other in self.ranks if other is not rank]
        while rank.sockets.num_received < sum(other.sockets.sent.total() for other in others):
            assert rank.sockets.inbox.poll(60_000)
            rank.loop.around.ranks.receive()

    def run_until_rest(self) -> None:
        """Until every rank has launched the same steps and has heard of no other one."""
        self.run(lambda: self.is_at_rest)

    @property
    def is_at_rest(self) -> bool:
        """Whether no rank has anything to do, and all rows that were sent have arrived."""
        steps = {rank.agreement.step for rank in self.ranks}
        is_quiet = all(not rank.agreement.missing and not rank.core.busy for rank in self.ranks)
        return len(steps) == 1 and is_quiet and self.num_rows == (steps.pop() - 1) * self.size

    @property
    def num_rows(self) -> int:
        """Steps that were announced, each rank's counted."""
        return sum(rank.sockets.sent["StepRow"] for rank in self.ranks)

    def _hear(self) -> None:
        for identity, raw in self.router.receive():
            envelope = open_envelope(raw)
            if envelope.opens:
                self.sessions[identity] = Session(envelope.session_number)
            self.sessions[identity].accept(envelope)
            self._take(identity, TO_GATEWAY.decode(envelope.body))

    def _take(self, identity: bytes, message: ToGateway) -> None:
        if isinstance(message, Register):
            self.members.add(identity)
            assert self.router.send(identity, self.sessions[identity].seal(TO_WORKER.encode(Welcome(1))))
        elif isinstance(message, Tokens):
            for choice in message.choices:
                self.answers[choice.request_id] += choice.token_ids
        elif isinstance(message, Heartbeat):
            self.num_beats[identity] += 1
        elif isinstance(message, Left):
            self.left.append(message.worker_id)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        self.router.close()
        self.context.destroy(linger=0)
