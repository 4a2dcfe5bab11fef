"""The life of a request on a decode worker. transfer/states.py has the states of its transfer.

    WAITING -> RUNNING -> FINISHED
       +----------+----> CANCELLED | FAILED

WAITING waits for its KV, RUNNING has joined the running batch. A request whose first token ends it goes from WAITING
straight to FINISHED.
"""

from collections.abc import Mapping
from enum import Enum


class DecodeState(Enum):
    """The state of a request."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


_ENDS = frozenset({DecodeState.FINISHED, DecodeState.CANCELLED, DecodeState.FAILED})

MOVES: Mapping[DecodeState, frozenset[DecodeState]] = {
    DecodeState.WAITING: _ENDS | {DecodeState.RUNNING},
    DecodeState.RUNNING: _ENDS,
    **dict.fromkeys(_ENDS, frozenset()),
}
