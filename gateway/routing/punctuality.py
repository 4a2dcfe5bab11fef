"""When the gateway looks at its workers, and which looks come too late to tell that a worker is silent. Pure."""

TICK_S = 0.25
LATE_S = 1.0  # seconds between two looks; after more, heartbeats may wait to be read
MOST_LATE = 4  # late looks in a row; a worker that is silent in all of them really is
LEAST_PAUSE_S = 0.001  # timers fire up to so much too soon


class Punctuality:
    """When the gateway looks at its workers, and whether it does so in time: after a pause of its own, it must not take
    unread heartbeats for silence. `now` is in seconds of one clock."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._num_late = 0  # late looks in a row

    def look(self, now: float) -> bool:
        """Whether this look came in time, or so many came late that nothing waits to be read any more."""
        self._num_late = self._num_late + 1 if now - self._last >= LATE_S else 0
        self._last = now
        return self._num_late % MOST_LATE == 0

    def pause(self, now: float, next_silent_at: float) -> float:
        """Seconds until the next look: the usual ones, or fewer if a worker will have been silent for too long by then.
        After a late look heartbeats may still wait to be read, so nobody is looked at sooner than usual."""
        if self._num_late or next_silent_at <= now:
            return TICK_S
        return min(TICK_S, next_silent_at - now + LEAST_PAUSE_S)
