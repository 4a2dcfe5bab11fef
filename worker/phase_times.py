"""How long requests spend in the phases of one worker, counted in buckets for `/metrics`; a stamp of the time line ends
each phase.

What it does not know: requests, beyond that a stamp belongs to one.
"""

from bisect import bisect_left
from collections import defaultdict
from weakref import WeakKeyDictionary

from protocol.messages_gateway import TIME_EDGES_S, TimeSpread

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
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(TIME_EDGES_S) + 1))
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def note(self, owner: object, stamp: str, now: float) -> None:
        """`owner` is the request, the same object at each of its stamps; `now` in seconds."""
        stamps = self._stamps.setdefault(owner, {})
        stamps[stamp] = now
        phase, begins = PHASES.get(stamp, ("", ()))
        for since in [stamps[begin] for begin in begins if begin in stamps]:
            self._counts[phase][bisect_left(TIME_EDGES_S, now - since)] += 1
            self._seconds[phase] += now - since

    @property
    def spreads(self) -> dict[str, TimeSpread]:
        """For the heartbeat, by phase."""
        return {phase: TimeSpread(tuple(counts), self._seconds[phase]) for phase, counts in self._counts.items()}
