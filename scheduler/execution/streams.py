"""A Stream runs device work in order; an Event marks a point in it.

    HostStream     runs segments on its own thread: the forward stream of a CPU worker
    InlineStream   runs segments on the caller's thread: its schedule stream
    CudaStream     streams_cuda.py

Tests add one that runs segments in any order that the declared waits allow. A forward is several segments; other
streams may run between them.
"""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor

from protocol.errors import BatonError

FORWARD_NICENESS = 5  # the loop's short turns go before a long forward
BESIDE_NICENESS = 10  # and forwards before what no token waits for
_NICEST = 19
Segment = Callable[..., None]  # called with the launch's `used`


class DeviceBroken(BatonError, RuntimeError):
    """A device can compute nothing any more, for example because an assertion of a kernel has failed on it.

    Whatever was launched on it will not complete, so nothing may wait for it.
    """

    code = "device_broken"


def first_line(error: Exception) -> str:
    """What an error says, without the advice that torch adds below."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class Event(Protocol):
    """A point in a stream."""

    def done(self) -> bool:
        """Whether everything launched before the point has completed. Never blocks. DeviceBroken if it never will."""
        ...

    def synchronize(self) -> None:
        """Blocks until `done`. Raises as `done` does."""
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

    def tell(self) -> None:
        """Called within a segment that takes long: tells of events before it that were reached and not told yet."""
        return

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
        """Finishes the launched work and releases the stream. Never raises; a broken device is left alone."""
        ...


def tensors_of(used: Sequence[Any]) -> Iterator[Tensor]:
    """The tensors that a launch uses."""
    for part in used:
        if isinstance(part, Tensor):
            yield part
        else:
            yield from part.tensors


class _Now:
    def done(self) -> bool:
        return True

    def synchronize(self) -> None:
        return


class HostEvent(threading.Event):
    """Done once the stream's thread has set it."""

    def done(self) -> bool:
        """Whether the thread has reached the point."""
        return self.is_set()

    def synchronize(self) -> None:
        """Blocks until the thread has reached the point."""
        self.wait()


class HostStream(Stream):
    """One thread that runs segments in order. It calls `on_event` whenever it reaches an event.

    `niceness` lets the threads that move messages and KV go first on a shared core.

    With `tells_late` and more work in the queue, it puts that call off until the work calls `tell`. Work does so before
    it runs C code or a copy for long. An earlier call would wake a thread that holds the interpreter's lock while the
    next launch needs it.
    """

    def __init__(self, name: str, on_event: Callable[[], None] | None = None, niceness: int = 0) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._on_event = on_event
        self.tells_late = False
        self._untold = False  # an event is reached, and `on_event` not yet called; the thread's own
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        tid = self._thread.native_id
        assert tid is not None, "it has started"
        _be_nice(tid, niceness)  # inherited by threads that it starts

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Enqueues the segments. They must not raise: a launch catches its own failures."""

        def run() -> None:
            for segment in segments:
                segment(*used)
            if self._queue.empty():
                self.tell()

        self._queue.put(run)

    def record(self) -> Event:
        """An event after everything launched so far."""
        event = HostEvent()

        def reach() -> None:
            event.set()
            self._untold = True
            if not self.tells_late or self._queue.empty():
                self.tell()

        self._queue.put(reach)
        return event

    def tell(self) -> None:
        """Calls `on_event` if it has not done so since it reached an event."""
        if self._untold:
            self._untold = False
            if self._on_event is not None:
                self._on_event()

    def wait(self, event: Event) -> None:
        """Later segments run after `event`."""

        def stand() -> None:
            self.tell()
            event.synchronize()

        if not event.done():
            self._queue.put(stand)

    def mark(self) -> Event:
        """An event that is done: everything before it has run. Calls `on_event`."""
        if self._on_event is not None:
            self._on_event()
        return _Now()

    def close(self) -> None:
        """Finishes the launched work and ends the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (segment := self._queue.get()) is not None:
            segment()
        self.tell()


def lower_priority() -> None:
    """Has the calling thread go behind all streams, on a shared core."""
    _be_nice(threading.get_native_id(), BESIDE_NICENESS)


def _be_nice(tid: int, niceness: int) -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, tid, min(_NICEST, mine + niceness))


class InlineStream(Stream):
    """Runs each segment at once, on the caller's thread."""

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Runs the segments."""
        for segment in segments:
            segment(*used)

    def record(self) -> Event:
        """An event that is already done."""
        return _Now()

    def wait(self, event: Event) -> None:
        """Blocks until `event` is done."""
        event.synchronize()

    def mark(self) -> Event:
        """Everything before is done."""
        return _Now()

    def close(self) -> None:
        """Nothing to release."""
