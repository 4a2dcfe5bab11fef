"""Whether the gateway's looks at its workers come in time. A gateway that was paused blames nobody for silence."""

LATE_S = 1.0  # between two looks: we were held up, and heartbeats may wait to be read
MOST_LATE = 4  # looks in a row: whoever is silent in all of them is not waiting to be read


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
