"""Groups as the gateway sees them: which ranks wait for the others of their epoch, and which epochs are over. Pure.

membership.py has the table of their states. It admits a group when `gather` returns all of its ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.routing.differences import difference_of_ranks
from protocol.messages_gateway import Register
from protocol.messages_group import GroupPlace

ASKS_WITHIN_S = 3.0  # a rank that waits asks every second; one that has not asked for so long is gone
MOST_GROUPS = 10_000  # of which it is remembered which epoch is over


@dataclass(frozen=True)
class Asking:
    """A rank that asks to join. `session`: the number of the session that its Register has opened."""

    message: Register
    place: GroupPlace
    session: int
    at: float  # when it asked


class Groups:
    """Ranks that wait, and epochs that are over. All ranks of a group that wait are of one epoch, its newest."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, Asking]] = {}  # by group and rank
        self._over: dict[str, tuple[int, str]] = {}  # by group: its newest epoch that is over, and why
        self._refused: dict[str, tuple[int, str]] = {}  # by group: the epoch that was refused before it gathered

    def fault(self, message: Register, place: GroupPlace) -> str | None:
        """Why the worker may not wait for the other ranks; None if it may."""
        worker_id, expected = message.address.worker_id, f"{place.group}.{place.rank}"
        if place.rank >= place.size:
            return f"rank of {worker_id} is {place.rank}, expected less than the size of its group, {place.size}"
        if worker_id != expected:
            return f"worker id of rank {place.rank} of group {place.group!r} is {worker_id}, expected {expected}"
        if (reason := self._why_over(place)) is not None:
            return over(place.group, place.epoch, reason)

        for rank, other in self._waiting.get(place.group, {}).items():
            theirs = other.message
            if other.place.epoch != place.epoch:
                break  # they are of an older one, and wait in vain
            if rank == place.rank and theirs.address.instance != message.address.instance:
                return f"two processes are {worker_id} in epoch {place.epoch}: pids {theirs.pid} and {message.pid}"
            if (unequal := difference_of_ranks(message, theirs)) is not None:
                return unequal
        return None

    def gather(self, asking: Asking) -> tuple[Asking, ...]:
        """Keeps a rank that has no fault, once older epochs have ended. Returns all ranks that wait, in their order."""
        waiting = self._waiting.setdefault(asking.place.group, {})
        waiting[asking.place.rank] = asking
        return tuple(waiting[rank] for rank in sorted(waiting))

    def admitted(self, place: GroupPlace) -> None:
        """The ranks of this group wait no longer: they are members."""
        del self._waiting[place.group]

    def refuse(self, place: GroupPlace, reason: str) -> tuple[Asking, ...]:
        """A rank of this epoch may not join, so none may. Returns those that waited. An epoch of which none has waited
        may be that of another command: only itself is over, and not what that name served before."""
        if self._why_over(place) is not None:
            return ()
        if any(asking.place.epoch == place.epoch for asking in self._waiting.get(place.group, {}).values()):
            return self.end(place.group, place.epoch, reason)
        self._refused.pop(place.group, None)
        self._refused[place.group] = place.epoch, reason
        if len(self._refused) > MOST_GROUPS:
            del self._refused[next(iter(self._refused))]
        return ()

    def end(self, group: str, epoch: int, reason: str) -> tuple[Asking, ...]:
        """This epoch and older ones are over. Returns their ranks that waited. Nothing changes if they were over."""
        if epoch <= self._over.get(group, (0, ""))[0]:
            return ()
        self._over.pop(group, None)
        self._over[group] = epoch, reason
        if len(self._over) > MOST_GROUPS:
            del self._over[next(iter(self._over))]

        waiting = tuple(self._waiting.get(group, {}).values())
        if not waiting or waiting[0].place.epoch > epoch:
            return ()
        del self._waiting[group]
        return waiting

    def forget(self, worker_id: str, instance: int) -> None:
        """This process waits no longer, or is about to ask in another session."""
        self._keep(
            lambda asking: (asking.message.address.worker_id, asking.message.address.instance) != (worker_id, instance)
        )

    def expire(self, now: float) -> None:
        """Forgets ranks that ask no longer."""
        self._keep(lambda asking: now - asking.at < ASKS_WITHIN_S)

    def _why_over(self, place: GroupPlace) -> str | None:
        """Why this epoch is over; None if it is not."""
        epoch, reason = self._over.get(place.group, (0, ""))
        if place.epoch <= epoch:
            return reason
        epoch, reason = self._refused.get(place.group, (0, ""))
        return reason if place.epoch == epoch else None

    def _keep(self, stays: Callable[[Asking], bool]) -> None:
        for group, waiting in list(self._waiting.items()):
            left = {rank: asking for rank, asking in waiting.items() if stays(asking)}
            if left:
                self._waiting[group] = left
            else:
                del self._waiting[group]


def over(group: str, epoch: int, reason: str) -> str:
    """The sentence for a rank of an epoch that is over."""
    return f"epoch {epoch} of group {group!r} is over: {reason}"
