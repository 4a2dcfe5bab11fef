"""Where device work runs: a Stream takes functions in order, an Event marks a point in it.

Two implementations stand beside this file: streams_host.py (a worker thread, for CPU) and streams_cuda.py. A forward
is one or more segments launched in order. What it does not know: what the segments compute.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor


class Event(Protocol):
    """A point in a stream."""

    def done(self) -> bool:
        """Whether everything launched before the point has completed. Never blocks."""
        ...

    def synchronize(self) -> None:
        """Blocks until `done`."""
        ...


class Stream(Protocol):
    """An ordered queue of device work."""

    def launch(self, segment: Callable[[], None], *tensors: Tensor) -> None:
        """Enqueues `segment`, which uses `tensors`. The caller keeps them alive until the work has completed."""
        ...

    def record(self) -> Event:
        """An event that is done when everything launched so far has completed."""
        ...

    def wait(self, event: Event) -> None:
        """What is launched from now on runs after `event`."""
        ...

    def synchronize(self) -> None:
        """Blocks until everything launched has completed."""
        ...

    def mark(self) -> Event:
        """Called within a segment: done when what the segment has done so far has completed."""
        ...

    def to_host(self, source: Tensor) -> Tensor:
        """Called within a segment: a host tensor that holds `source` once an event behind the segment is done."""
        ...

    def read_host(self, tensor: Tensor) -> list[int]:
        """The values of a tensor made by `to_host`, after its event is done: the only way the host reads results."""
        ...

    def close(self) -> None:
        """Finishes what was launched and releases the stream."""
        ...
