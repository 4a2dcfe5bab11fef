"""A rank's link to the others of its group while it serves: it announces steps, beats, and notices silence."""

from collections.abc import Callable
from typing import Any, Final

from protocol.errors import GroupBroken
from protocol.messages_group import RankBeat, StepRow
from runtime.clock import Clock
from scheduler.agreement import Agreement
from worker.group_watch import GroupWatch
from worker.parts import PeerLink
from worker.rank_sockets import RankSockets

BEAT_S: Final = 0.4  # so every second heartbeat of a loop, of 0.25 s each; a beat wakes all other ranks


class GroupLink(PeerLink):
    """Made when the ranks have met. `agreement` is the planner's. `running`: see Executor.running_step. `doing`: the
    collective that its forward is in, or its graph; "" if it is in none. `waits`: see RankBeat."""

    def __init__(
        self,
        sockets: RankSockets,
        agreement: Agreement,
        clock: Clock,
        running: Callable[[], int],
        doing: Callable[[], str] = lambda: "",
        waits: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._sockets, self._agreement, self._clock = sockets, agreement, clock
        self._running, self._doing, self._waits = running, doing, waits
        self._beat_at = 0.0
        self._rests = False
        self._rests_since = -1  # the step behind which it has told the others that it rests
        self._watch = GroupWatch(agreement.rank, agreement.size, clock.now())

    def receive(self) -> None:
        """Hands rows to the agreement and beats to the watch. GroupBroken if a message cannot be true."""
        for message in self._sockets.receive():
            if isinstance(message, StepRow):
                self._agreement.take(message)
            elif isinstance(message, RankBeat):
                self._watch.heard(message, self._clock.now())
            else:
                raise GroupBroken(f"rank {message.place.rank} has said hello again, although it serves")

    def flush(self) -> None:
        """Announces the steps of this rank."""
        for row in self._agreement.outgoing:
            self._sockets.send(row)
        self._agreement.outgoing.clear()

    def may_end(self, rests: bool) -> bool:
        """Whether no rank needs this one any more: all have told one another that they rest behind the same step."""
        if rests and not self._rests:
            self._beat_at = 0.0  # they wait for it
        self._rests = rests
        step = self._agreement.step - 1
        return rests and self._rests_since == step and self._watch.all_rest(step)

    def tick(self) -> None:
        """Tells the others that this rank lives. GroupBroken if one of them does not, or holds up a step."""
        agreement, now = self._agreement, self._clock.now()
        own = RankBeat(
            epoch=agreement.epoch,
            rank=agreement.rank,
            step=agreement.step - 1,
            running=self._running(),
            doing=self._doing(),
            rests=self._rests,
            waits=self._waits(),
        )
        if now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self._sockets.send(own)
            self._rests_since = own.step if own.rests else -1
        self._watch.look(own, agreement.step, agreement.missing, now)

    def pollables(self) -> tuple[Any, ...]:
        """The socket on which the others speak."""
        return (self._sockets.inbox,)

    def close(self) -> None:
        """Closes every socket."""
        self._sockets.close()
