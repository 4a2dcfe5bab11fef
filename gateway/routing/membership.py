"""The table of workers that serve: admits them, notes heartbeats, and declares them lost. pairing.py picks from them.

    | stage     | Leaving             | no request needs it | Left        | silence, no progress, connection lost |
    |-----------|---------------------|---------------------|-------------|---------------------------------------|
    | READY     | LEAVING: it gets no |                     | it is lost  | it is lost                            |
    |           | new requests        |                     |             |                                       |
    | LEAVING   |                     | Leave is sent: FREE | it has left | it is lost                            |
    | FREE      |                     |                     | it has left | it has left                           |

Register makes a worker READY. An instance that is lost or has left is never READY again. If its process is heard of
once more, it is told DeclaredLost, and registers as another instance. Refused are a rank of a group, a worker that has
left, and one whose launch makes no progress: it needs another process.

A worker id belongs to its live holder. Another process that asks for it is not admitted until the holder is lost; so a
restarted worker, which asks again every second, takes over. A worker of another role or host is refused.

The ranks of a group are admitted together and lost together. This is what becomes of one epoch of a group:

    | epoch    | a rank registers                      | a rank goes         | a newer epoch registers             |
    |----------|---------------------------------------|---------------------|-------------------------------------|
    | unknown  | it waits: GATHERS                     |                     |                                     |
    | GATHERS  | it waits; with the last rank, all are | it waits no longer  | OVER                                |
    |          | admitted: SERVES. One that differs    |                     |                                     |
    |          | is refused: OVER                      |                     |                                     |
    | SERVES   | a member is welcome again, any other  | all are lost: OVER  | it is kept waiting                  |
    |          | process is refused                    |                     |                                     |
    | OVER     | refused                               |                     | as if this one had never been       |

With an epoch, all older ones are over. A rank that has waited in an epoch that is over is refused when it asks again.
A new gateway knows no epochs, so the ranks of a group gather there once more. Pure.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from gateway.routing.differences import difference_from
from gateway.routing.groups import Asking, Groups, over
from gateway.routing.members import Change, HowLost, Loss, Member, Patience, Stage, WorkerKey, missing_role
from protocol.messages_gateway import (
    Heartbeat,
    Leave,
    PeerLost,
    Refused,
    Register,
    RegisterAgain,
    Role,
    ToWorker,
    Welcome,
)
from protocol.messages_group import GroupPlace
from runtime.settings import GatewaySettings

# Losses, and workers kept waiting, that are remembered. Without a bound, workers that come and go would fill memory.
MOST_LOSSES = 10_000
LEAD_S = 0.1  # less than a worker waits between two heartbeats: as many are missing as at the limit itself


class Membership:
    """The workers of one gateway. `now` is in seconds of one clock. A silent worker is lost LEAD_S before
    `silence_limit_s` is over. A launch that runs for `launch_deadline_s` never ends, so its worker is lost,
    heartbeats or not. `tokenizer`: the digest of the gateway's tokenizer.json. `facts`: those of its config.json.
    Empty values are not compared. `hash_key`: of the prefixes that workers tell; without it they tell none."""

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
        self._patience = Patience(silence_limit_s - LEAD_S, launch_deadline_s)

        self._members: dict[str, Member] = {}  # by worker id
        self.losses: dict[WorkerKey, Loss] = {}  # the last MOST_LOSSES, oldest first
        self._told_lost: set[WorkerKey] = set()  # those of `losses` that were heard again, and answered
        self.num_lost = self.num_left = 0  # since the start
        self._num_flushes: Counter[Role] = Counter()  # FlushCache that members of a role were sent
        self._kept_waiting: dict[str, WorkerKey] = {}  # by worker id: the process that asked for it last
        self._groups = Groups()
        self._seen_roles: set[Role] = set()  # of all workers that ever joined

    @property
    def members(self) -> tuple[Member, ...]:
        """Workers that serve, in the order of their ids."""
        return tuple(self._members[worker_id] for worker_id in sorted(self._members))

    @property
    def ready(self) -> tuple[Member, ...]:
        """Workers that get new requests."""
        return tuple(member for member in self.members if member.stage is Stage.READY)

    def find(self, key: WorkerKey) -> Member | None:
        """The member with exactly this key, if any."""
        member = self._members.get(key.worker_id)
        return member if member is not None and member.key == key else None

    @property
    def missing(self) -> str | None:
        """One sentence that names the missing role, or None if requests can be served."""
        return missing_role({member.role for member in self.ready}, self._seen_roles)

    def register(self, message: Register, now: float, session: int = 1) -> Change:
        """Admits the worker (Welcome), refuses it with a reason, or does not answer while its id is in use or ranks of
        its group are missing. `session`: the number of the session that the message opens."""
        key, place = WorkerKey.named_in(message.address), message.place
        loss = self.losses.get(key)
        if loss is not None and loss.may_return:
            return self._tell_lost(key, loss)
        others = [member.registered for member in self.members]
        reason = difference_from(message, self.tokenizer, self.facts, others) if loss is None else loss.answer.reason
        if reason is not None:
            return self._refuse(message, reason)

        known = self._members.get(key.worker_id)
        if known is not None and known.key == key:
            self._members[key.worker_id] = replace(known, stats=message.stats, last_seen=now)
            return Change(((key, self._welcome(known.role)),))

        if place is not None and (fault := self._groups.fault(message, place)) is not None:
            return self._refuse(message, fault)
        holders = (known,) if known is not None else () if place is None else self._ranks_of(place.group)
        if holders:
            return self._taken(holders[0], message)
        if place is None:
            return self._admit((Member(message, message.stats, now, session=session),))
        return self._gather(Asking(message, place, session, now))

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
        """Tells a worker that is not a member to register, or that it was lost."""
        self._groups.forget(key.worker_id, key.instance)  # it will ask in another session
        loss = self.losses.get(key)
        return (
            self._tell_lost(key, loss) if loss is not None else Change(((key, RegisterAgain(self.gateway_instance)),))
        )

    def leaving(self, key: WorkerKey) -> tuple[Member, ...]:
        """The worker was told to end. It and all ranks of its group get no new requests. Returns those that did."""
        member = self.find(key)
        unit = () if member is None else tuple(rank for rank in self._unit(member) if rank.stage is Stage.READY)
        for rank in unit:
            self._members[rank.key.worker_id] = replace(rank, stage=Stage.LEAVING)
        return unit

    def free(self, is_needed: Callable[[WorkerKey], bool]) -> Change:
        """Tells leaving workers that no request needs them, and the ranks of a group all at once."""
        leaving = [member for member in self.members if member.stage is Stage.LEAVING]
        free = [member for member in leaving if not any(is_needed(rank.key) for rank in self._unit(member))]
        for member in free:
            self._members[member.key.worker_id] = replace(member, stage=Stage.FREE)
        return Change(tuple((member.key, Leave()) for member in free))

    def give_up(self, key: WorkerKey, reason: str, how: HowLost = HowLost.CUT) -> Change:
        """The worker has LEFT by itself, or its connection is lost (ENDED), has lost messages or is full (CUT). It is
        gone at once, and the other ranks of its group with it. `reason`: what is said of it behind its name."""
        member = self.find(key)
        self._groups.forget(key.worker_id, key.instance)
        if member is None:
            return Change()
        is_orderly = member.stage is Stage.FREE or (how is HowLost.LEFT and member.stage is Stage.LEAVING)
        return self._lose(member, how, reason, is_orderly=is_orderly)

    def flush(self, roles: Collection[Role]) -> tuple[WorkerKey, ...]:
        """The members of these roles are sent FlushCache. Returns who they are. Others hear of it with Welcome."""
        self._num_flushes.update(roles)
        return tuple(member.key for member in self.members if member.role in roles)

    @property
    def next_silent_at(self) -> float:
        """When the first member will have been silent for too long, unless a heartbeat comes; infinity without any."""
        return min(map(self._patience.silent_at, self._members.values()), default=float("inf"))

    def expire(self, now: float) -> Change:
        """Declares workers lost that were silent for too long or hang in a launch."""
        outgoing: list[tuple[WorkerKey, ToWorker]] = []
        lost: list[Member] = []
        self._groups.expire(now)
        for member in self.members:
            reason = self._patience.why_lost(member, now)
            if reason is not None and self.find(member.key) is not None:  # else it was lost with its group
                change = self._lose(member, *reason)
                outgoing += change.outgoing
                lost += change.lost
        gone = {member.key for member in lost}
        return Change(tuple(entry for entry in outgoing if entry[0] not in gone), tuple(lost))

    # ---- joining ----

    def _welcome(self, role: Role) -> Welcome:
        return Welcome(self.gateway_instance, self.hash_key, self._num_flushes[role])

    def _gather(self, rank: Asking) -> Change:
        """Keeps a rank until all of its group wait, then admits them."""
        place = rank.place
        self._end_epoch(place.group, place.epoch - 1, f"epoch {place.epoch} has begun")
        ranks = self._groups.gather(rank)
        if len(ranks) < place.size or any(asking.message.address.worker_id in self._members for asking in ranks):
            reason = (
                f"{len(ranks)} of {place.size} ranks of group {place.group!r} have registered in epoch {place.epoch}"
            )
            is_first = self._waits_anew(WorkerKey.named_in(rank.message.address))
            return Change(gathering=reason if is_first else "")

        self._groups.admitted(place)
        return self._admit(
            tuple(Member(asking.message, asking.message.stats, rank.at, session=asking.session) for asking in ranks)
        )

    def _admit(self, members: tuple[Member, ...]) -> Change:
        for member in members:
            self._members[member.key.worker_id] = member
            self._seen_roles.add(member.role)
        return Change(tuple((member.key, self._welcome(member.role)) for member in members), joined=members)

    def _ranks_of(self, group: str) -> tuple[Member, ...]:
        """The ranks of this group that serve, in whatever epoch."""
        return tuple(member for member in self.members if member.place is not None and member.place.group == group)

    def _taken(self, holder: Member, message: Register) -> Change:
        """Answers another process that asks for the id of a live worker, or for the name of a live group."""
        held, key, place = holder.registered, WorkerKey.named_in(message.address), message.place
        name = f"worker id {key.worker_id!r}"
        if place is not None and held.address.worker_id != key.worker_id:
            name = f"group {place.group!r}"
        reason = f"{name} is taken by a live {held.role} worker (pid {held.pid} on {held.host})"
        if (message.role, message.host) != (held.role, held.host) or (place is not None and self._serves(place)):
            return self._refuse(message, reason)
        refusal = f"{reason}; pid {message.pid} may join when that one is gone"
        return Change(kept_waiting=refusal if self._waits_anew(key) else "")

    def _serves(self, place: GroupPlace) -> bool:
        """Whether the group serves, in just this epoch."""
        return any(
            member.place is not None and member.place.epoch == place.epoch for member in self._ranks_of(place.group)
        )

    def _waits_anew(self, key: WorkerKey) -> bool:
        """Whether this process is kept waiting for the first time. It gets no answer, and asks again."""
        if self._kept_waiting.get(key.worker_id) == key:
            return False
        self._kept_waiting[key.worker_id] = key
        if len(self._kept_waiting) > MOST_LOSSES:
            del self._kept_waiting[next(iter(self._kept_waiting))]
        return True

    def _refuse(self, message: Register, reason: str) -> Change:
        """Refuses a worker. With a rank of a group that does not serve, all others are refused, so that none of them
        waits in vain."""
        place = message.place
        if place is not None and not self._serves(place):
            self._note_refused(place.group, self._groups.refuse(place, reason), reason)
        return Change(((WorkerKey.named_in(message.address), Refused(reason)),))

    # ---- losing ----

    def _end_epoch(self, group: str, epoch: int, reason: str) -> None:
        """No rank of this epoch may join any more. Those that wait are refused when they ask again."""
        self._note_refused(group, self._groups.end(group, epoch, reason), reason)

    def _note_refused(self, group: str, ranks: tuple[Asking, ...], reason: str) -> None:
        for rank in ranks:
            key = WorkerKey.named_in(rank.message.address)
            self._note_loss(key, Loss(over(group, rank.place.epoch, reason), rank.at, HowLost.EPOCH, reason))

    def _unit(self, member: Member) -> tuple[Member, ...]:
        """What leaves and is lost together: all ranks of its group, or the member alone."""
        return (member,) if member.place is None else self._ranks_of(member.place.group)

    def _lose(self, member: Member, how: HowLost, says: str, *, is_orderly: bool = False) -> Change:
        place, lost, reason = member.place, self._unit(member), f"worker {member.key.worker_id!r} {says}"
        if place is not None:
            self._end_epoch(place.group, place.epoch, reason)

        for rank in lost:
            del self._members[rank.key.worker_id]
            self._kept_waiting.pop(rank.key.worker_id, None)
            told = reason
            if rank.key != member.key:
                told = f"its group {'has left' if is_orderly else 'has lost a rank'}: {reason}"
            may_return = place is None and not is_orderly and not self._patience.hangs(rank)
            self._note_loss(rank.key, Loss(told, rank.last_seen, how, says, may_return))
        if is_orderly:
            self.num_left += len(lost)
        else:
            self.num_lost += len(lost)
        news = [PeerLost(rank.key.worker_id, rank.key.instance, is_orderly) for rank in lost]
        return Change(tuple((other.key, loss) for other in self.members for loss in news), lost, is_orderly)

    def _note_loss(self, key: WorkerKey, loss: Loss) -> None:
        self.losses[key] = loss
        self._told_lost.discard(key)
        if len(self.losses) > MOST_LOSSES:
            oldest = next(iter(self.losses))
            del self.losses[oldest]
            self._told_lost.discard(oldest)

    def _tell_lost(self, key: WorkerKey, loss: Loss) -> Change:
        """Answers a lost worker. It may be heard many times before it has read that."""
        is_repeated = key in self._told_lost
        self._told_lost.add(key)
        return Change(((key, loss.answer),), is_repeated=is_repeated)
