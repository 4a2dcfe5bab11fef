"""Weights whose rows are read a few at a time, so that a worker never holds a whole one twice while it packs it.

A tensor is such a weight; so is one that is dequantised, widened or put in another order while it is read.
Shapes: O outputs, I inputs.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol

import torch
from torch import Tensor

AT_ONCE: Final = 1 << 17  # numbers that are read at a time


class Rows(Protocol):
    """A weight (O, I) on a CPU."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(O, I)."""
        ...

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Some rows, one after the other."""
        ...


@dataclass(frozen=True)
class ReadRows:
    """Rows that `read` makes: those of [start, end)."""

    shape: tuple[int, ...]
    read: Callable[[int, int], Tensor]

    def __getitem__(self, rows: slice, /) -> Tensor:
        start, end, step = rows.indices(self.shape[0])
        assert step == 1
        return self.read(start, end)


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one part behind the other."""
    starts = [0, *accumulate(part.shape[0] for part in parts)]

    def read(start: int, end: int) -> Tensor:
        first = min(bisect_right(starts, start), len(parts)) - 1
        last = max(first + 1, bisect_right(starts, end - 1))
        pieces = [parts[i][max(0, start - starts[i]) : end - starts[i]] for i in range(first, last)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    return ReadRows((starts[-1], *parts[0].shape[1:]), read)


def ordered(rows: Rows, order: Sequence[int]) -> Rows:
    """Rows that are heads, one behind the other, with the dimensions of each head in this order."""
    size, of_head = len(order), torch.tensor(order)

    def read(start: int, end: int) -> Tensor:
        first, last = start // size, -(-end // size)
        heads = rows[first * size : last * size]
        by_head = heads.reshape(last - first, size, *rows.shape[1:]).index_select(1, of_head)
        return by_head.reshape(heads.shape)[start - first * size : end - first * size]

    return ReadRows(rows.shape, read)


def slices_of(rows: Rows, multiple: int = 1) -> Iterator[slice]:
    """All rows, AT_ONCE numbers at a time; each slice but the last has a multiple of so many rows."""
    count, inputs = rows.shape
    step = max(1, AT_ONCE // max(1, inputs) // multiple) * multiple
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def whole(rows: Rows) -> Tensor:
    """All rows as one tensor."""
    if isinstance(rows, Tensor):
        return rows
    first = rows[0:1]
    made = torch.empty(rows.shape, dtype=first.dtype)
    for part in slices_of(rows):
        made[part] = rows[part]
    return made
