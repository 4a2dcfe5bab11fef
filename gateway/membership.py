"""The table of workers that serve: admits them, notes heartbeats, and declares them lost. pairing.py picks from them.

    (unknown) --Register--> READY --silence, no progress, connection lost, or Leaving--> LOST (refused for ever)

A worker id belongs to its live holder. Another process that asks for it is not admitted until the holder is lost; so a
restarted worker, which asks again every second, takes over. A worker of another role or host is refused. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from gateway.prefixes import KnownPrefixes
from protocol.fingerprint import unequal_fact
from protocol.messages_gateway import (
    Heartbeat,
    Leaving,
    PeerLost,
    Refused,
    Register,
    RegisterAgain,
    Role,
    ToWorker,
    Welcome,
    WorkerAddress,
    WorkerStats,
)
from protocol.pairs import Serves, pair_fault
from runtime.settings import GatewaySettings

MOST_LOSSES = 10_000  # losses that are remembered; without a bound, a worker that joins and leaves would fill memory


@dataclass(frozen=True)
class WorkerKey:
    """One process: its stable worker id, and the instance drawn at its start."""

    worker_id: str
    instance: int

    @cached_property
    def identity(self) -> bytes:
        """The routing id of the worker's socket."""
        return f"{self.worker_id}#{self.instance}".encode()

    @staticmethod
    def named_in(message: WorkerAddress | Heartbeat | Leaving) -> "WorkerKey":
        """The process that a message names."""
        return WorkerKey(message.worker_id, message.instance)

    @staticmethod
    def of(identity: bytes) -> "WorkerKey":
        """The process whose socket has this routing id. ValueError if it is not an `identity`."""
        worker_id, _, instance = identity.decode().rpartition("#")
        return WorkerKey(worker_id, int(instance))


@dataclass(frozen=True)
class Member:
    """A worker that was admitted. `last_seen`: the time of its last Register or Heartbeat. `prefixes`: what it has
    cached; the membership adds to it."""

    registered: Register
    stats: WorkerStats
    last_seen: float
    launch_age_s: float = 0.0
    prefixes: KnownPrefixes = field(default_factory=KnownPrefixes, compare=False)

    @property
    def key(self) -> WorkerKey:
        """The process."""
        return WorkerKey.named_in(self.registered.address)

    @property
    def role(self) -> Role:
        """Its role."""
        return self.registered.role


@dataclass(frozen=True)
class Change:
    """The result of one event: messages to send, and members that were lost or admitted."""

    outgoing: tuple[tuple[WorkerKey, ToWorker], ...] = ()
    lost: tuple[Member, ...] = ()
    joined: Member | None = None
    kept_waiting: str = ""  # why a worker got no answer; set only the first time


@dataclass(frozen=True)
class Loss:
    """Why a process is lost, and when it was last heard."""

    reason: str
    last_seen: float


class Membership:
    """The workers of one gateway. `now` is in seconds of one clock. A worker that is silent for `silence_limit_s` is
    lost. A launch that runs for `launch_deadline_s` will never end, so its worker is lost even if it sends heartbeats.
    `tokenizer`: the digest of the gateway's tokenizer.json. `facts`: Fingerprint's facts of its config.json. Empty
    values are not compared. `hash_key`: of the prefixes that workers tell of; without one they tell nothing."""

    def __init__(
        self,
        gateway_instance: int,
        launch_deadline_s: float = GatewaySettings.launch_deadline_s,
        silence_limit_s: float = GatewaySettings.silence_limit_s,
        tokenizer: str = "",
        facts: Mapping[str, str] = MappingProxyType({}),
        hash_key: bytes = b"",
    ) -> None:
        self.gateway_instance = gateway_instance
        self.hash_key = hash_key
        self.tokenizer = tokenizer
        self.facts = facts
        self._launch_deadline_s = launch_deadline_s
        self._silence_limit_s = silence_limit_s

        self._members: dict[str, Member] = {}  # by worker id
        self.losses: dict[WorkerKey, Loss] = {}  # the last MOST_LOSSES, oldest first
        self.num_lost = 0  # since the start
        self._kept_waiting: dict[str, WorkerKey] = {}  # by worker id: the process that asked for it last
        self._seen_roles: set[Role] = set()  # of all workers that ever joined

    @property
    def members(self) -> tuple[Member, ...]:
        """Workers that serve, in the order of their ids."""
        return tuple(self._members[worker_id] for worker_id in sorted(self._members))

    def find(self, key: WorkerKey) -> Member | None:
        """The member with exactly this key, if any."""
        member = self._members.get(key.worker_id)
        return member if member is not None and member.key == key else None

    @property
    def missing(self) -> str | None:
        """One sentence that names the missing role, or None if requests can be served."""
        roles = {member.role for member in self._members.values()}
        if Role.UNIFIED in roles or {Role.PREFILL, Role.DECODE} <= roles:
            return None
        if not roles:
            return "no worker is ready" if self._seen_roles else "no worker is ready yet"
        role = Role.DECODE if Role.PREFILL in roles else Role.PREFILL
        return f"no {role} worker is ready" if role in self._seen_roles else f"no {role} worker is ready yet"

    def register(self, message: Register, now: float) -> Change:
        """Admits the worker (Welcome), refuses it with a reason, or does not answer while its id is in use."""
        key = WorkerKey.named_in(message.address)
        loss = self.losses.get(key)
        reason = loss.reason if loss is not None else self._difference(message)
        if reason is not None:
            return Change(((key, Refused(reason)),))
        welcome = (key, Welcome(self.gateway_instance, self.hash_key))

        known = self._members.get(key.worker_id)
        if known is not None and known.key == key:
            self._members[key.worker_id] = replace(known, stats=message.stats, last_seen=now)
            return Change((welcome,))
        if known is not None:
            return self._taken(known, message)

        member = Member(message, message.stats, now)
        self._members[key.worker_id] = member
        self._seen_roles.add(member.role)
        return Change((welcome,), (), member)

    def heartbeat(self, message: Heartbeat, now: float) -> Change:
        """Notes a member's load, what it has cached, and the time."""
        key = WorkerKey.named_in(message)
        member = self.find(key)
        if member is None:
            return self.greet_stranger(key)
        member.prefixes.learn(message.cache)
        self._members[key.worker_id] = replace(
            member, stats=message.stats, last_seen=now, launch_age_s=message.launch_age_s
        )
        return Change()

    def greet_stranger(self, key: WorkerKey) -> Change:
        """Tells a worker that is not a member to register, or that it is refused."""
        loss = self.losses.get(key)
        answer = RegisterAgain(self.gateway_instance) if loss is None else Refused(loss.reason)
        return Change(((key, answer),))

    def give_up(self, key: WorkerKey, why: str) -> Change:
        """The worker ends by itself, or its connection is lost or lost messages. It is lost at once. `why`: for the
        log."""
        member = self.find(key)
        return self._lose(member, f"worker {key.worker_id!r} {why}") if member is not None else Change()

    def expire(self, now: float) -> Change:
        """Declares workers lost that were silent for too long or hang in a launch."""
        outgoing: list[tuple[WorkerKey, ToWorker]] = []
        lost: list[Member] = []
        for member in self.members:
            reason = self._hopeless(member, now)
            if reason is not None:
                change = self._lose(member, f"worker {member.key.worker_id!r} {reason}")
                outgoing += change.outgoing
                lost += change.lost
        gone = {member.key for member in lost}
        return Change(tuple(each for each in outgoing if each[0] not in gone), tuple(lost))

    def _hopeless(self, member: Member, now: float) -> str | None:
        silence = now - member.last_seen
        if silence >= self._silence_limit_s:
            return f"was silent for {silence:.1f} s"
        if member.launch_age_s >= self._launch_deadline_s:
            return f"made no progress in a launch for {member.launch_age_s:.1f} s"
        return None

    def _taken(self, holder: Member, message: Register) -> Change:
        """Answers another process that asks for the id of a live worker."""
        held, key = holder.registered, WorkerKey.named_in(message.address)
        reason = f"worker id {key.worker_id!r} is taken by a live {held.role} worker (pid {held.pid} on {held.host})"
        if (message.role, message.host) != (held.role, held.host):
            return Change(((key, Refused(reason)),))
        if self._kept_waiting.get(key.worker_id) == key:
            return Change()
        self._kept_waiting[key.worker_id] = key
        return Change(kept_waiting=f"{reason}; pid {message.pid} may join when that one is gone")

    def _lose(self, member: Member, reason: str) -> Change:
        del self._members[member.key.worker_id]
        self._kept_waiting.pop(member.key.worker_id, None)
        self.losses[member.key] = Loss(f"{reason}; this instance may not return", member.last_seen)
        self.num_lost += 1
        if len(self.losses) > MOST_LOSSES:
            del self.losses[next(iter(self.losses))]
        news = PeerLost(member.key.worker_id, member.key.instance)
        return Change(tuple((other.key, news) for other in self.members), (member,))

    def _difference(self, message: Register) -> str | None:
        """How this worker differs from the gateway's own folder or from the workers that serve. KV or tokens could not
        pass between them. None if it does not differ."""
        worker_id, tokenizer = message.address.worker_id, message.fingerprint.tokenizer

        if tokenizer and self.tokenizer and tokenizer != self.tokenizer:
            return f"tokenizer.json: its digest is {tokenizer} on {worker_id}, {self.tokenizer} at the gateway"
        unequal = unequal_fact(message.fingerprint.facts, self.facts, worker_id, "the gateway")
        if unequal is not None:
            return unequal

        for other in self.members:
            if other.key.worker_id == worker_id:  # itself, or a process that must be gone before this one may join
                continue

            theirs, other_id = other.registered, other.key.worker_id
            ours, others = (Serves(each.address.worker_id, each.layout, each.fingerprint) for each in (message, theirs))
            if not _needs_draft(message, theirs):
                ours, others = ours.without_draft, others.without_draft
            if (model := pair_fault(ours, others)) is not None:
                return model

            pairs: list[tuple[str, object, object]] = [("vocabulary size", message.vocab_size, theirs.vocab_size)]
            if theirs.backend and message.backend:
                pairs.append(("transfer backend", message.backend, theirs.backend))
                encrypts = ("not given", "given")
                pairs.append(("--encrypt-data", encrypts[message.encrypts_data], encrypts[theirs.encrypts_data]))

            for what, got, expected in pairs:
                if got != expected:
                    return f"{what} is {got} on {worker_id}, {expected} on {other_id}"
        return None


def _needs_draft(one: Register, other: Register) -> bool:
    """Whether the two may become a pair, which needs one draft unless decode goes without."""
    are_pair = {one.role, other.role} == {Role.PREFILL, Role.DECODE}
    return are_pair and not (one if one.role is Role.DECODE else other).may_lack_draft
