"""The life of a job on a prefill worker.

    WAITING -> COMPUTING -> SENDING -> DELIVERED
       |           |           |
       +-----------+-----------+----> CANCELLED | FAILED

WAITING waits for pages and a row. COMPUTING runs its chunks and sends each layer once it is computed. SENDING has sent
its first token to the gateway and waits for decode's KvDelivered. A job whose first token ends the request goes from
COMPUTING straight to DELIVERED.
"""

from collections.abc import Mapping
from enum import Enum


class JobState(Enum):
    """The state of a job."""

    WAITING = "waiting"
    COMPUTING = "computing"
    SENDING = "sending"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    FAILED = "failed"


_ENDS = frozenset({JobState.CANCELLED, JobState.FAILED})

MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.WAITING: frozenset({JobState.COMPUTING}) | _ENDS,
    JobState.COMPUTING: frozenset({JobState.SENDING, JobState.DELIVERED}) | _ENDS,
    JobState.SENDING: frozenset({JobState.DELIVERED}) | _ENDS,
    JobState.DELIVERED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.FAILED: frozenset(),
}
