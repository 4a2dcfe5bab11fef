"""Streams and events of a CUDA device, as streams.py declares them. The only file of this room that calls CUDA.

Results go to pinned host memory, so that a copy does not block. After a failed assertion of a kernel, every call of a
device raises. Here such an error becomes a DeviceBroken with the cause.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from scheduler.execution.streams import DeviceBroken, Event, Segment, Stream, first_line, tensors_of


@contextmanager
def _device_errors() -> Iterator[None]:
    """Raises DeviceBroken for an error of a call that only a broken device refuses."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceBroken(first_line(error)) from error


class CudaEvent:
    """A device event."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """DeviceBroken if the device is."""
        with _device_errors():
            self.event = torch.cuda.Event()
            self.event.record(stream)

    def done(self) -> bool:
        """Whether the device has reached the event. DeviceBroken if it never will."""
        with _device_errors():
            return bool(self.event.query())

    def synchronize(self) -> None:
        """Blocks until the device has reached the event. DeviceBroken if it never will."""
        with _device_errors():
            self.event.synchronize()


class CudaStream(Stream):
    """Enqueues segments by running them on the calling thread with the stream current."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """`stream` is a new one for forwards, and the scheduler thread's current one for the schedule stream."""
        self._stream = stream

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Runs the segments with this stream current; their kernels are queued on the device.

        `record_stream` tells the allocator about tensors of another stream. It does not reuse their memory before this
        stream has passed this point.
        """
        for tensor in tensors_of(used):
            if tensor.is_cuda:
                tensor.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            for segment in segments:
                segment(*used)

    def record(self) -> Event:
        """An event after everything launched so far. DeviceBroken if the device is."""
        return CudaEvent(self._stream)

    def wait(self, event: Event) -> None:
        """Later segments run after `event`. DeviceBroken if the device is."""
        if isinstance(event, CudaEvent):
            with _device_errors():
                self._stream.wait_event(event.event)
        else:
            event.synchronize()

    def mark(self) -> Event:
        """An event after the kernels that the segment has queued so far."""
        return CudaEvent(self._stream)

    def to_host(self, source: Tensor) -> Tensor:
        """A pinned tensor that the copy fills in stream order."""
        target = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        target.copy_(source, non_blocking=True)
        return target

    def close(self) -> None:
        """Waits for the device, unless it is broken."""
        with suppress(RuntimeError):
            self._stream.query()  # raises at once if it is
            self._stream.synchronize()
