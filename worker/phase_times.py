"""Stamps the moments of requests, and counts in buckets for `/metrics` how long they spend in each phase of one worker.

A stamp ends each phase.
"""

from bisect import bisect_left
from collections import defaultdict

from protocol.messages_gateway import TIME_EDGES_S, Stamp, TimeSpread
from runtime.clock import Clock
from worker.assigned import Assigned

PHASES = {  # the stamp that ends a phase: its name, and the stamps that may begin it
    "reserved, job sent": ("queue_time", ("queued at decode",)),
    "prefill start": ("queue_time", ("job received", "queued")),  # at prefill, at a unified worker
    "first token": ("prefill_time", ("prefill start",)),
    "KV delivered": ("kv_transfer_time", ("first frame landed",)),
    "KV acknowledged": ("kv_handover_time", ("prompt computed",)),  # both at prefill
}


class PhaseTimes:
    """Takes every stamp of every request, even if its client asks for no time line."""

    def __init__(self, clock: Clock, worker_id: str) -> None:
        self._clock = clock
        self._worker_id = worker_id
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(TIME_EDGES_S) + 1))
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def stamp(self, request: Assigned, name: str, at: float | None = None) -> None:
        """Stamps `request` with the moment `at`, in seconds of the clock, or with now."""
        moment = self._clock.now() if at is None else at
        request.moments[name] = moment
        if request.assign.timeline:
            request.stamps.append(Stamp(name, moment, self._worker_id))

        phase, begins = PHASES.get(name, ("", ()))
        for since in [request.moments[begin] for begin in begins if begin in request.moments]:
            self._counts[phase][bisect_left(TIME_EDGES_S, moment - since)] += 1
            self._seconds[phase] += moment - since

    @property
    def spreads(self) -> dict[str, TimeSpread]:
        """The times by phase, for the heartbeat."""
        return {phase: TimeSpread(tuple(counts), self._seconds[phase]) for phase, counts in self._counts.items()}
