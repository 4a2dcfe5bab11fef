"""What a batch knows of its rows in the FutureMap: their owners, and which lengths a launch in flight publishes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from model.inputs import int64_column
from scheduler.plan import Draw, Join

OWNER_SHIFT: Final = 32  # bits; a token is smaller than 2**32, and a row is handed out fewer than 2**31 times


def owners_of(draws: Sequence[Draw], device: torch.device) -> Tensor:
    """(N,) int64: the owner numbers of the rows, shifted by OWNER_SHIFT to leave room for a token or a length."""
    return int64_column([draw.owner_number << OWNER_SHIFT for draw in draws], device)


@dataclass(frozen=True)
class DraftInput:
    """Where a batch of B rows finds the lengths for its next launch. Only batches with speculation have one.

    `future_indices_B` are the rows, captured when they were last launched or when they joined. `pending` says of each
    whether a launch publishes its length. The host knows the lengths of the others, which are seeded.
    """

    future_indices_B: Tensor
    pending: Sequence[bool]

    @staticmethod
    def joining(joins: Sequence[Join], rows_B: Tensor) -> "DraftInput":
        """For rows that join. A launch that draws a row's token also publishes its length."""
        return DraftInput(rows_B, [join.input_id is None for join in joins])

    @staticmethod
    def launched(rows_B: Tensor) -> "DraftInput":
        """For rows that were just launched: the launch publishes all their lengths."""
        return DraftInput(rows_B, [True] * len(rows_B))

    @staticmethod
    def known(rows_B: Tensor) -> "DraftInput":
        """For rows whose lengths the host knows."""
        return DraftInput(rows_B, [False] * len(rows_B))

    @property
    def is_pending(self) -> bool:
        """Whether a launch publishes any of the lengths."""
        return any(self.pending)

    def take(self, keep: Sequence[int], keep_N: Tensor) -> "DraftInput":
        """The rows `keep`, on the host and on the device."""
        return DraftInput(self.future_indices_B.index_select(0, keep_N), [self.pending[row] for row in keep])

    def concat(self, other: "DraftInput") -> "DraftInput":
        """These rows, then the other's."""
        rows_B = torch.cat((self.future_indices_B, other.future_indices_B))
        return DraftInput(rows_B, [*self.pending, *other.pending])
