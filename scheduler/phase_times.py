"""How long requests spend in the phases of one worker, summed up for `/metrics`; a stamp of the time line ends each.

What it does not know: requests, beyond that a stamp belongs to one.
"""

from collections import Counter
from weakref import WeakKeyDictionary

# the stamp that ends a phase; the one before it, whichever that is, begins it
PHASE_ENDS = {
    "reserved, job sent": "queue_time",  # of a decode worker
    "prefill start": "queue_time",  # of a prefill or unified worker
    "first token": "prefill_time",
    "KV delivered": "kv_transfer_time",  # since its first frame landed
}


class PhaseTimes:
    """Takes every stamp of every request, whether its client asks for a time line or not."""

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[object, float] = WeakKeyDictionary()
        self._totals: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def note(self, owner: object, stamp: str, now: float) -> None:
        """`owner` is the request, the same object at each of its stamps; `now` in seconds."""
        since, self._last[owner] = self._last.get(owner), now
        phase = PHASE_ENDS.get(stamp)
        if phase is not None and since is not None:
            self._totals[phase] += 1
            self._seconds[phase] = self._seconds.get(phase, 0.0) + now - since

    @property
    def counters(self) -> dict[str, float]:
        """For the heartbeat: of each phase the number of requests and the seconds of all of them."""
        counts = {f"{phase}_seconds_count": float(count) for phase, count in self._totals.items()}
        return counts | {f"{phase}_seconds_sum": seconds for phase, seconds in self._seconds.items()}
