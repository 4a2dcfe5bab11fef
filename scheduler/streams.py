"""A Stream runs device work in order; an Event marks a point in it.

streams_host.py (a thread, for CPU) and streams_cuda.py implement them. Tests add one that runs segments in any order
that the declared waits allow. A forward is several segments; other streams may run between them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor

Segment = Callable[..., None]  # called with the launch's `used`


class Event(Protocol):
    """A point in a stream."""

    def done(self) -> bool:
        """Whether everything launched before the point has completed. Never blocks."""
        ...

    def synchronize(self) -> None:
        """Blocks until `done`."""
        ...


class Stream(Protocol):
    """An ordered queue of device work. What it copies to the host is, by default, host memory already."""

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Enqueues each of `segments`, to be called with `used`: tensors, or objects with a `tensors` property.

        The caller keeps `used` alive until the work has completed. Segments must not raise.
        """
        ...

    def record(self) -> Event:
        """An event that is done when everything launched so far has completed."""
        ...

    def wait(self, event: Event) -> None:
        """Makes later segments run after `event`."""
        ...

    def mark(self) -> Event:
        """Called within a segment: an event that is done when the segment's work so far has completed."""
        ...

    def to_host(self, source: Tensor) -> Tensor:
        """Called within a segment: a host tensor that holds `source` once an event after the segment is done.

        It is a copy, so that later launches cannot change it.
        """
        return source.clone()

    def read_host(self, tensor: Tensor) -> list[int]:
        """The values of a tensor made by `to_host`, after its event is done. The host reads results only this way."""
        values: list[int] = tensor.tolist()
        return values

    def close(self) -> None:
        """Finishes the launched work and releases the stream."""
        ...


def tensors_of(used: Sequence[Any]) -> Iterator[Tensor]:
    """The tensors that a launch uses."""
    for each in used:
        if isinstance(each, Tensor):
            yield each
        else:
            yield from each.tensors
