"""Whether every message between the gateway and a worker has arrived: a connection that breaks and comes back, or a
queue that is full, loses some without a word, and what cannot be read says nothing: a request would wait for ever for
what they said.

Both sides count; heartbeats carry the worker's counts. Time is counted in heartbeats, one of each worker a look, so
that whoever was paused, and finds many that were sent long ago, blames nobody. Pure. What it does not know: sockets,
what is done about it.
"""

from dataclasses import dataclass

LATE_S = 1.0  # between two looks: we were held up, and heartbeats may wait to be read
MOST_LATE = 4  # looks in a row: whoever is silent in all of them is not waiting to be read
MOST_BEATS = 8  # some 2 s, within which a worker that is heard must have received what was sent


class Punctuality:
    """Whether a look at the workers may blame their silence on them: `now` is in seconds of one clock."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._num_late = 0  # in a row

    def look(self, now: float) -> bool:
        """Whether this look came in time, or so many came late that there is nothing to wait for."""
        self._num_late = self._num_late + 1 if now - self._last >= LATE_S else 0
        self._last = now
        return self._num_late % MOST_LATE == 0


@dataclass
class _Counts:
    to_come: int  # what the worker's next heartbeat must say it has sent, less that heartbeat itself
    told: int  # what the worker will have received once it has everything
    mark: int = 0  # `told` at some moment, which the worker is to confirm; 0: it has
    num_beats: int = 0  # since then, in different looks
    last_look: int = 0  # in which one was counted


class Continuity:
    """Counts by the routing id of a worker. A worker that tells no counts is not checked."""

    def __init__(self) -> None:
        self._counts: dict[bytes, _Counts] = {}
        self._num_looks = 0

    def look(self) -> None:
        """A while has passed for us; heartbeats that come between two looks may all be old ones."""
        self._num_looks += 1

    def begin(self, identity: bytes, num_sent: int | None, num_received: int | None) -> None:
        """The worker has registered, and says how many messages it has sent (this one included) and received. A second
        time before Welcome came: what it is told is numbered on, for numbers that go back look like messages lost."""
        if num_sent is not None and num_received is not None:
            counts = self._counts.setdefault(identity, _Counts(num_sent, num_received))
            counts.to_come = num_sent

    def end(self, identity: bytes) -> None:
        """The worker is no member any more."""
        self._counts.pop(identity, None)

    def heard(self, identity: bytes) -> None:
        """A message of any kind has come from it, and could be read."""
        if (counts := self._counts.get(identity)) is not None:
            counts.to_come += 1

    def told(self, identity: bytes) -> None:
        """A message was sent to it."""
        if (counts := self._counts.get(identity)) is not None:
            counts.told += 1
            if not counts.mark:
                counts.mark, counts.num_beats, counts.last_look = counts.told, 0, self._num_looks

    def number(self, identity: bytes) -> int | None:
        """Of the message that is told next, as the worker may check it; None for who is not counted."""
        counts = self._counts.get(identity)
        return None if counts is None else counts.told + 1

    def gap(self, identity: bytes, num_sent: int | None, num_received: int | None, num_missed: int = 0) -> str | None:
        """What a heartbeat, which was `heard` already, shows to be missing; None when nothing is."""
        if num_missed:
            return f"has missed {num_missed} of the messages that were sent to it"
        counts = self._counts.get(identity)
        if counts is None or num_sent is None or num_received is None:
            return None
        if num_sent != counts.to_come:
            return f"has sent {num_sent} messages, of which {counts.to_come} arrived and could be read"
        if num_received >= counts.mark:
            counts.mark = 0
            return None
        counts.num_beats += counts.last_look != self._num_looks
        counts.last_look = self._num_looks
        if counts.num_beats < MOST_BEATS:
            return None
        return f"has received {num_received} messages of {counts.mark} that were sent to it"
