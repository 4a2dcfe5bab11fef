"""The life of a request on a decode worker.

    RESERVING -> REQUESTED -> RECEIVING -> DELIVERED -> RUNNING -> FINISHED
        |            |            |            |           |
        +------------+------------+------------+-----------+----> CANCELLED | FAILED

RESERVING waits for pages, a row and job credit. REQUESTED has sent its job. In RECEIVING a frame has landed, in
DELIVERED all have. A request whose first token ends it goes from REQUESTED or later straight to FINISHED.
"""

from collections.abc import Mapping
from enum import Enum


class DecodeState(Enum):
    """The state of a request."""

    RESERVING = "reserving"
    REQUESTED = "requested"
    RECEIVING = "receiving"
    DELIVERED = "delivered"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


_ENDS = frozenset({DecodeState.CANCELLED, DecodeState.FAILED})

MOVES: Mapping[DecodeState, frozenset[DecodeState]] = {
    DecodeState.RESERVING: frozenset({DecodeState.REQUESTED}) | _ENDS,
    DecodeState.REQUESTED: frozenset({DecodeState.RECEIVING, DecodeState.DELIVERED, DecodeState.FINISHED}) | _ENDS,
    DecodeState.RECEIVING: frozenset({DecodeState.DELIVERED, DecodeState.FINISHED}) | _ENDS,
    DecodeState.DELIVERED: frozenset({DecodeState.RUNNING, DecodeState.FINISHED}) | _ENDS,
    DecodeState.RUNNING: frozenset({DecodeState.FINISHED}) | _ENDS,
    DecodeState.FINISHED: frozenset(),
    DecodeState.CANCELLED: frozenset(),
    DecodeState.FAILED: frozenset(),
}
