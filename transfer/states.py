"""The states of a transfer at one rank, the same at both ends. A request or job has the least state of its ranks.

    RESERVING -> REQUESTED -> RECEIVING (decode) or SENDING (prefill) -> DELIVERED
        +------------+------------+----> CANCELLED | FAILED

| state | decode | prefill |
|---|---|---|
| RESERVING | waits for pages, rows and job credit | the job waits for pages and a row |
| REQUESTED | has sent its job | computes the prompt; a layer leaves as soon as it is final |
| RECEIVING, SENDING | a frame has landed | the prompt is computed, and the last frame is queued |
| DELIVERED | every frame has landed, and the digest agrees | decode has said so |
"""

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import TypeVar

S = TypeVar("S", bound=Enum)


class TransferState(StrEnum):
    """The state of a transfer at one rank of one end, the least first."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    RESERVING = "reserving"
    REQUESTED = "requested"
    RECEIVING = "receiving"
    SENDING = "sending"
    DELIVERED = "delivered"


OPEN = frozenset({TransferState.REQUESTED, TransferState.RECEIVING})  # frames may land
_ENDS = frozenset({TransferState.CANCELLED, TransferState.FAILED})

TRANSITIONS: Mapping[TransferState, frozenset[TransferState]] = {
    TransferState.RESERVING: _ENDS | {TransferState.REQUESTED},
    TransferState.REQUESTED: _ENDS | {TransferState.RECEIVING, TransferState.SENDING},
    TransferState.RECEIVING: _ENDS | {TransferState.DELIVERED},
    TransferState.SENDING: _ENDS | {TransferState.DELIVERED},
    **dict.fromkeys((TransferState.DELIVERED, *_ENDS), frozenset()),
}


def advance(table: Mapping[S, frozenset[S]], old: S, new: S) -> S:
    """`new`, if the table allows the move. Any other move is our own bug: AssertionError."""
    if new not in table[old]:
        raise AssertionError(f"illegal move {old.name} -> {new.name}")
    return new


def least(states: Iterable[TransferState]) -> TransferState:
    """The state on which the ranks of a request or job agree: RESERVING before they have begun."""
    return min(states, key=list(TransferState).index, default=TransferState.RESERVING)
