"""What the ranks of a group do together within a forward. Every forward of the target enters each of the two once a
layer, also one without tokens, so ranks never wait for a rank that does not come.

Shapes: R ranks, P tokens of each rank, padded; E hidden.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from protocol.errors import GroupBroken
from protocol.messages_group import StepShape

GATHER: Final = 0
EXCHANGE: Final = 1
OPERATIONS: Final = ("gather", "exchange")


class Collectives(Protocol):
    """The ranks of one group. Each call blocks the forward stream until every rank has entered it.

    Each call has a tag. Ranks whose tags differ have lost each other: GroupBroken names both. With NCCL, tags are
    compared in debug mode only, and not in steps of graphs.
    """

    rank: int
    size: int

    def gather(self, own_PE: Tensor, step: StepShape) -> Tensor:
        """(R, P, E): what every rank has given."""
        ...

    def exchange(self, parts_RPE: Tensor, step: StepShape) -> Tensor:
        """(R, P, E): what every rank has given for this rank: [r] is part [own rank] of rank r."""
        ...


class Tag(NamedTuple):
    """Which call a rank is at."""

    step: int
    num_before: int  # calls of the step before this one
    operation: int
    padded: int  # P
    hidden: int  # E

    def __str__(self) -> str:
        """As "gather 3 of step 17"."""
        return f"{OPERATIONS[self.operation]} {self.num_before // len(OPERATIONS)} of step {self.step}"


class Calls:
    """Numbers the calls of one rank. One thread enters and leaves; `current` may be read by another one."""

    def __init__(self) -> None:
        self.current: Tag | None = None  # the call that has not returned
        self._step, self._num_entered = 0, 0

    def enter(self, operation: int, parts_KPE: Tensor, step: StepShape) -> Tag:
        """The tag of the next call, which hands over these parts."""
        self._num_entered = self._num_entered + 1 if step.step == self._step else 1
        self._step = step.step
        self.current = Tag(self._step, self._num_entered - 1, operation, *parts_KPE.shape[1:])
        return self.current

    def leave(self) -> None:
        """The call has returned or failed."""
        self.current = None


def check_tags(tags: Sequence[Tag]) -> None:
    """`tags` by rank. GroupBroken if not all ranks are at the same call. All of them say the same."""
    for rank, tag in enumerate(tags):
        if tag != tags[0]:
            first, other = (f"rank {number} at {at} {at[3:]}" for number, at in ((0, tags[0]), (rank, tag)))
            raise GroupBroken(f"ranks have lost each other: {first}, {other}")


def outside_steps(num_ranks: int, num_tokens: int, *, graphs: bool = False) -> StepShape:
    """What all ranks compute before the first step: every one of them the same number of tokens."""
    return StepShape(0, (num_tokens,) * num_ranks, graphs)


def agree(collectives: Collectives, is_fine: bool, device: torch.device) -> bool:
    """Whether all ranks say that it is fine. Each of them calls it at the same place, outside of steps."""
    own_11 = torch.full((1, 1), float(is_fine), device=device)
    return bool(collectives.gather(own_11, outside_steps(collectives.size, 1)).all())
