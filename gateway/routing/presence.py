"""Which roles have a worker, since when no request can be served and why, and which workers were started again. Pure.

A gateway knows members and losses. When a worker is started again it knows of those of its own launcher only, which
tells it (runtime/supervision.py): `baton serve`.
"""

from collections import Counter

from gateway.routing.members import Change, WorkerKey
from gateway.routing.membership import MOST_LOSSES, Membership
from protocol.messages_gateway import Role
from runtime.supervision import UnitNews, describe_unit


class Presence:
    """The coming and going of workers. `now` is in seconds of one clock. A gateway begins with no worker."""

    def __init__(self, now: float) -> None:
        self.restarts = Counter({str(role): 0 for role in Role})  # worker ids that came back as another process
        # By worker id: host and pid; the last MOST_LOSSES, oldest first.
        self._processes: dict[str, tuple[str, int]] = {}
        self._seen: set[Role] = set()
        self._without_since: dict[Role, float] = {}  # roles that had a worker, and now have none that gets requests
        self._unserved_since: float | None = now
        self._last_loss = ""
        # When the worker that was lost last was heard last; not of those that left.
        self._lost_at: dict[Role, float] = {}
        self._awaited: dict[Role, float] = {}  # of these, the roles that requests lack now
        self.units: dict[str, UnitNews] = {}  # by name: what the launcher has told of the workers that it keeps alive

    def note(self, membership: Membership, change: Change, now: float) -> None:
        """The membership has changed, or a worker has begun to leave."""
        for member in change.joined:
            self._note_process(member.key, str(member.role), (member.registered.host, member.registered.pid))
        for member in change.lost:
            self._last_loss = membership.losses[member.key].says
            if not change.is_orderly:
                self._lost_at[member.role] = member.last_seen

        roles = {member.role for member in membership.ready}
        self._seen |= roles
        gone = self._seen - roles
        self._without_since = {role: self._without_since.get(role, now) for role in gone}
        if membership.missing is None:
            self._unserved_since = None
        elif self._unserved_since is None:
            self._unserved_since = now
        lost_at = {role: at for role, at in self._lost_at.items() if role not in roles}
        self._awaited = {} if membership.missing is None else lost_at

    def awaited_since(self) -> float | None:
        """When a worker was last heard that requests lack and that may be started again, because it was lost. None if
        they lack none, or only workers that have left, have never been there, or are given up."""
        return max((at for role, at in self._awaited.items() if not self._is_given_up(role)), default=None)

    def _is_given_up(self, role: Role) -> bool:
        """Whether the launcher keeps workers of this role, and starts none of them again."""
        states = {news.state for news in self.units.values() if news.role == role}
        return bool(states) and states <= {"given up", "left"}

    def _note_process(self, key: WorkerKey, role: str, process: tuple[str, int]) -> None:
        before = self._processes.pop(key.worker_id, process)
        self.restarts[role] += before != process
        self._processes[key.worker_id] = process
        if len(self._processes) > MOST_LOSSES:
            del self._processes[next(iter(self._processes))]

    def seconds_without(self, now: float) -> dict[Role, float]:
        """By role that has had a worker: for how long none of them gets requests; 0 if one does."""
        return {role: now - self._without_since.get(role, now) for role in sorted(self._seen)}

    def heard(self, news: UnitNews) -> None:
        """The launcher has told the state of a unit."""
        self.units[news.unit] = news

    def troubles(self, now: float) -> list[str]:
        """A sentence for each unit that does not run, by the launcher's word, without names."""
        return [
            describe_unit(news, f"a {news.role} worker", now)
            for _, news in sorted(self.units.items())
            if news.state != "running"
        ]

    def describe(self, missing: str, now: float) -> str:
        """`missing` is what the membership says is missing. Adds for how long, how the last worker was lost, and what
        the launcher does about it."""
        unserved_s = now - (now if self._unserved_since is None else self._unserved_since)
        reason = f"; the worker lost last {self._last_loss}" if self._last_loss else ""
        said = f"{missing}, so no request could be served for {unserved_s:.0f} s{reason}"
        return "; ".join([said, *self.troubles(now)])
