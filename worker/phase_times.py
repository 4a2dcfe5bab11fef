"""How long requests spend in each phase of one worker, counted in buckets for `/metrics`. A stamp ends each phase."""

from bisect import bisect_left
from collections import defaultdict
from weakref import WeakKeyDictionary

from protocol.messages_gateway import TIME_EDGES_S, TimeSpread

PHASES = {  # the stamp that ends a phase: its name, and the stamps that may begin it
    "reserved, job sent": ("queue_time", ("queued at decode",)),
    "prefill start": ("queue_time", ("job received", "queued")),  # at prefill, at a unified worker
    "first token": ("prefill_time", ("prefill start",)),
    "KV delivered": ("kv_transfer_time", ("first frame landed",)),
    "KV acknowledged": ("kv_handover_time", ("prompt computed",)),  # both at prefill
}


class PhaseTimes:
    """Takes every stamp of every request, even if its client asks for no time line."""

    def __init__(self) -> None:
        self._stamps: WeakKeyDictionary[object, dict[str, float]] = WeakKeyDictionary()
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(TIME_EDGES_S) + 1))
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def note(self, owner: object, stamp: str, now: float) -> None:
        """Counts a stamp. `owner` is the request's object, the same at each stamp; `now` is in seconds."""
        stamps = self._stamps.setdefault(owner, {})
        stamps[stamp] = now
        phase, begins = PHASES.get(stamp, ("", ()))
        for since in [stamps[begin] for begin in begins if begin in stamps]:
            self._counts[phase][bisect_left(TIME_EDGES_S, now - since)] += 1
            self._seconds[phase] += now - since

    @property
    def spreads(self) -> dict[str, TimeSpread]:
        """The times by phase, for the heartbeat."""
        return {phase: TimeSpread(tuple(counts), self._seconds[phase]) for phase, counts in self._counts.items()}
