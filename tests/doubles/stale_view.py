"""What a schedule stream sees of a tensor that a forward stream writes: values behind an event that it has waited for.

A simulation runs everything on one thread, so a value is there as soon as its writer has run. On a device the schedule
stream may run far behind or ahead of it. So the simulation shows its segments the values of the last event that the
schedule stream has waited for, and of its own writes since.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


class Snapshot(NamedTuple):
    """All values of a tensor at an event, when `num_written` segments of the schedule stream had written it."""

    values: Tensor
    num_written: int


@dataclass(eq=False)
class StaleView:
    """`tensor` as one schedule stream sees it. The forward stream has not written it yet.

    A segment that writes what it sees already is not known to have written it.
    """

    tensor: Tensor
    num_written: int = 0
    _seen: Tensor = field(init=False)
    _written_by: Tensor = field(init=False)  # by element: the newest segment of the schedule stream that wrote it

    def __post_init__(self) -> None:
        with _disable_current_modes():
            self._seen = self.tensor.clone()
            self._written_by = torch.zeros_like(self.tensor, dtype=torch.int64)

    def snapshot(self) -> Snapshot:
        """What an event passes on to those who wait for it."""
        with _disable_current_modes():
            return Snapshot(self.tensor.clone(), self.num_written)

    def learn(self, snapshot: Snapshot) -> None:
        """The schedule stream has waited for the event of `snapshot`."""
        with _disable_current_modes():
            self._seen = torch.where(self._written_by > snapshot.num_written, self._seen, snapshot.values)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While a segment of the schedule stream runs: `tensor` holds what the stream sees. Its writes stay."""
        with _disable_current_modes():
            actual = self.tensor.clone()
            self.tensor.copy_(self._seen)
        try:
            yield
        finally:
            with _disable_current_modes():
                is_written = self.tensor != self._seen
                self.num_written += 1
                self._written_by[is_written] = self.num_written
                self._seen = self.tensor.clone()
                self.tensor.copy_(torch.where(is_written, self.tensor, actual))
