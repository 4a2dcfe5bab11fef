"""What the loop of a worker drives: a core, and links to peers. Its surroundings, and how its life ends."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from protocol.errors import BatonError
from protocol.messages_gateway import ToWorker
from protocol.worker_facts import WorkerStats
from runtime.bus import Wake
from runtime.clock import Clock
from runtime.log import EventLog, Refusals, get_log
from runtime.process_life import StatusPipe, StopSignal
from scheduler.planning.overlap_loop import OverlapLoop
from scheduler.planning.planner import Planner
from worker.known_gateway import KnownGateway
from worker.requests import Outbox

log = get_log("worker")


class Core(Protocol):
    """A worker's decisions: PrefillWorker, DecodeWorker or UnifiedWorker."""

    outbox: Outbox
    loop: OverlapLoop

    def on_gateway(self, message: ToWorker) -> None:
        """Takes a message from the gateway."""

    def reset(self) -> None:
        """Ends everything: the gateway has restarted, or has declared this worker lost."""

    def turn(self) -> bool:
        """One turn; never blocks. False when there was nothing to do."""

    @property
    def planner(self) -> Planner:
        """The planner, which decides the launches and has the KV manager."""

    @property
    def busy(self) -> bool:
        """Whether a launch, or device work of a transfer, is in flight."""

    def stats(self) -> WorkerStats:
        """Load for the heartbeat."""


class PeerLink:
    """The sockets between a worker and its peers of the other role, or the other ranks of its group. A worker without
    them has this one."""

    def __init__(self, log: EventLog = log) -> None:
        self.refusals = Refusals(log, "message refused")

    def receive(self) -> None:
        """Hands arrived messages to the core. Malformed ones are counted and dropped."""

    def flush(self) -> None:
        """Sends the core's messages to peers."""

    def tick(self) -> None:
        """Sends the counts of each session that is not settled. Called with every heartbeat."""

    def forget(self, instance: int) -> None:
        """Forgets a peer that is lost."""

    def forget_all(self) -> None:
        """Forgets every peer: a new gateway does not report peers that were lost with the old one."""

    def may_end(self, rests: bool) -> bool:
        """Whether this worker may end. `rests`: it has and gets no work. Other ranks are told, and must rest, too."""
        return rests

    def pollables(self) -> Sequence[Any]:
        """The sockets and descriptors to wait on."""
        return ()

    def close(self) -> None:
        """Closes every socket, and lets go of peers' memory. Idempotent."""


@dataclass(frozen=True)
class Surroundings:
    """Whom a worker process hears and tells, through all of its lives."""

    stop: StopSignal
    wake: Wake
    clock: Clock
    status: StatusPipe = field(default_factory=StatusPipe)  # of its launcher
    ranks: PeerLink = field(default_factory=PeerLink)  # a GroupLink, where there are other ranks
    known: KnownGateway = field(default_factory=KnownGateway)
    refused_connections: Callable[[], Mapping[str, int]] = dict  # by reason; see runtime/curve.py


class Ending(StrEnum):
    """How a life of a worker has ended."""

    LEFT = "left"  # the process ends
    LOST = "lost"  # the gateway has declared it lost, and nothing of it is in flight: the process returns


class RefusedByGateway(BatonError):
    """The gateway refuses this worker. The message is its reason."""

    code = "refused"


class WorkerBroken(BatonError):
    """Every launch of this worker fails, for every request. The process ends, so that a restart may help.

    `at_device`: the device itself is broken, or the group, for which a forward may wait for ever. Then nothing on the
    device may be waited for, or closed.
    """

    code = "worker_broken"

    def __init__(self, message: str, *, at_device: bool = False) -> None:
        super().__init__(message)
        self.at_device = at_device
