"""What is known of one worker that serves, and of one that is lost. membership.py has the table of all."""

from collections.abc import Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from gateway.routing.prefixes import KnownPrefixes
from protocol.messages_gateway import (
    DeclaredLost,
    Heartbeat,
    Leaving,
    Left,
    Refused,
    Register,
    Role,
    ToWorker,
    WorkerAddress,
)
from protocol.messages_group import GroupPlace
from protocol.worker_facts import WorkerStats


class HowLost(StrEnum):
    """How a worker was lost or has gone."""

    ENDED = "ended"  # its connection is gone. A process that only stands still keeps it
    CUT = "cut"  # a message between it and the gateway was lost, or made no sense, or found its queue full
    SILENT = "silent"
    STUCK = "stuck"  # one of its launches does not end
    LEFT = "left"  # it was told to end, or ends by itself
    EPOCH = "epoch"  # it has waited in an epoch of its group that is over


@dataclass(frozen=True)
class WorkerKey:
    """One life of a worker: its stable worker id, and the instance drawn when that life began."""

    worker_id: str
    instance: int

    @cached_property
    def identity(self) -> bytes:
        """The routing id of the worker's socket."""
        return f"{self.worker_id}#{self.instance}".encode()

    @staticmethod
    def named_in(message: WorkerAddress | Heartbeat | Leaving | Left) -> "WorkerKey":
        """The process that a message names."""
        return WorkerKey(message.worker_id, message.instance)

    @staticmethod
    def of(identity: bytes) -> "WorkerKey":
        """The process whose socket has this routing id. ValueError if it is not an `identity`."""
        worker_id, _, instance = identity.decode().rpartition("#")
        return WorkerKey(worker_id, int(instance))


class Stage(StrEnum):
    """How far a member is on its way out."""

    READY = "ready"
    LEAVING = "leaving"  # it was told to end; requests that it has begun still need it
    FREE = "free"  # it was told that nothing needs it any more


@dataclass(frozen=True)
class Member:
    """A worker that was admitted. `last_seen`: the time when it joined, or of its last Register or Heartbeat.
    `session`: the number of the session that its Register opened. `prefixes`: what it has cached; the membership adds
    to it."""

    registered: Register
    stats: WorkerStats
    last_seen: float
    launch_age_s: float = 0.0
    session: int = 1
    prefixes: KnownPrefixes = field(default_factory=KnownPrefixes, compare=False)
    stage: Stage = Stage.READY

    @property
    def key(self) -> WorkerKey:
        """The process."""
        return WorkerKey.named_in(self.registered.address)

    @property
    def role(self) -> Role:
        """Its role."""
        return self.registered.role

    @property
    def place(self) -> GroupPlace | None:
        """Its place in its group. None: it has no group."""
        return self.registered.place


@dataclass(frozen=True)
class Change:
    """The result of one event: messages to send, and members that were lost or admitted."""

    outgoing: tuple[tuple[WorkerKey, ToWorker], ...] = ()
    lost: tuple[Member, ...] = ()
    is_orderly: bool = False  # those that are lost were told to end, and have left
    joined: tuple[Member, ...] = ()
    kept_waiting: str = ""  # why a worker got no answer; set only the first time
    gathering: str = ""  # the same, of a rank that waits for the others of its group
    is_repeated: bool = False  # a lost worker is told so, and was told before


@dataclass(frozen=True)
class Loss:
    """Why an instance is lost, and when it was last heard. `says`: how it was lost, without names. `may_return`: its
    process, if it lives, may join as another instance. With a rank of a group all others are lost as it was."""

    reason: str
    last_seen: float
    how: HowLost
    says: str
    may_return: bool = False

    @property
    def answer(self) -> DeclaredLost | Refused:
        """What its process is told when it is heard again."""
        return DeclaredLost(self.reason) if self.may_return else Refused(f"{self.reason}; this instance may not return")


@dataclass(frozen=True)
class Patience:
    """How long a member may be silent, and how long one of its launches may take, in seconds."""

    silence_s: float
    launch_s: float

    def silent_at(self, member: Member) -> float:
        """When it will have been silent for too long."""
        return member.last_seen + self.silence_s

    def hangs(self, member: Member) -> bool:
        """Whether its launch is one that never ends, by its last heartbeat."""
        return member.launch_age_s >= self.launch_s

    def why_lost(self, member: Member, now: float) -> tuple[HowLost, str] | None:
        """How it is lost by now, and what is said of it behind its name; None if it is not."""
        if now >= self.silent_at(member):
            return HowLost.SILENT, f"was silent for {now - member.last_seen:.1f} s"
        if self.hangs(member):
            return HowLost.STUCK, f"made no progress in a launch for {member.launch_age_s:.1f} s"
        return None


def missing_role(ready: Set[Role], seen: Set[Role]) -> str | None:
    """One sentence that names the role without which nothing can be served, or None. `ready`: the roles of workers that
    get requests. `seen`: of all that ever joined."""
    if Role.UNIFIED in ready or {Role.PREFILL, Role.DECODE} <= ready:
        return None
    if not ready:
        return "no worker is ready" if seen else "no worker is ready yet"
    role = Role.DECODE if Role.PREFILL in ready else Role.PREFILL
    return f"no {role} worker is ready" if role in seen else f"no {role} worker is ready yet"
