"""Where device work runs: a Stream takes functions in order, an Event marks a point in it.

Two implementations stand beside this file: streams_host.py (a worker thread, for CPU) and streams_cuda.py. Explorations
pass one that runs segments in any order that the declared waits allow. A forward is several segments launched together;
between them other streams may run. What it does not know: what the segments compute.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor

Segment = Callable[..., None]  # called with what the launch uses


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

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Enqueues each of `segments`, to be called with `used`: tensors, or things whose `tensors` are the tensors
        they hold. The caller keeps what is used alive until the work has completed. Segments must not raise."""
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


def tensors_of(used: Sequence[Any]) -> Iterator[Tensor]:
    """The tensors that a launch uses."""
    for each in used:
        if isinstance(each, Tensor):
            yield each
        else:
            yield from each.tensors
