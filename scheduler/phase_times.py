"""How long requests spend in the phases of one worker, summed up for `/metrics`; a stamp of the time line ends each.

What it does not know: requests, beyond that a stamp belongs to one.
"""

from collections import Counter
from weakref import WeakKeyDictionary

PHASES = {  # by the stamp that ends it: the phase, and the stamp that begins it
    "reserved, job sent": ("queue_time", ("queued at decode",)),
    "prefill start": ("queue_time", ("job received", "queued")),  # of a prefill worker, of a unified one
    "first token": ("prefill_time", ("prefill start",)),
    "KV delivered": ("kv_transfer_time", ("first frame landed",)),
    "KV acknowledged": ("kv_handover_time", ("prompt computed",)),  # both at prefill
}


class PhaseTimes:
    """Takes every stamp of every request, whether its client asks for a time line or not."""

    def __init__(self) -> None:
        self._stamps: WeakKeyDictionary[object, dict[str, float]] = WeakKeyDictionary()
        self._totals: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def note(self, owner: object, stamp: str, now: float) -> None:
        """`owner` is the request, the same object at each of its stamps; `now` in seconds."""
        stamps = self._stamps.setdefault(owner, {})
        stamps[stamp] = now
        phase, begins = PHASES.get(stamp, ("", ()))
        for since in [stamps[begin] for begin in begins if begin in stamps]:
            self._totals[phase] += 1
            self._seconds[phase] = self._seconds.get(phase, 0.0) + now - since

    @property
    def counters(self) -> dict[str, float]:
        """For the heartbeat: of each phase the number of requests and the seconds of all of them."""
        counts = {f"{phase}_seconds_count": float(count) for phase, count in self._totals.items()}
        return counts | {f"{phase}_seconds_sum": seconds for phase, seconds in self._seconds.items()}
