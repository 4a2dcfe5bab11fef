"""Whether the gateway looks at its workers in time. After a pause of its own, it must not take unread heartbeats for
silence."""

LATE_S = 1.0  # seconds between two looks; after more, heartbeats may wait to be read
MOST_LATE = 4  # late looks in a row; a worker that is silent in all of them really is


class Punctuality:
    """Tells whether a look may count a worker's silence. `now` is in seconds of one clock."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._num_late = 0  # late looks in a row

    def look(self, now: float) -> bool:
        """Whether this look came in time, or so many came late that nothing waits to be read any more."""
        self._num_late = self._num_late + 1 if now - self._last >= LATE_S else 0
        self._last = now
        return self._num_late % MOST_LATE == 0
