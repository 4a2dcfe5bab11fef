"""A recorder in the place of `torch.cuda`: it notes every call in order, and can refuse memory or be broken.

recorder = CudaRecorder.installed(monkeypatch)
recorder.break_down()          # from now on every call of the device raises, as after a failed assertion
recorder.hold()                # from now on the device reaches no event, until recorder.reach(count): the oldest ones
recorder.calls                 # names of the calls, with the arguments that matter
recorder.tensor()              # a tensor that says that it lies on the device, and notes record_stream

Streams and events have numbers; 0 is the stream that is current at the start. Nothing runs late: what a launch has
queued, and on which stream, is what counts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import pytest
import torch
from torch import Tensor

ASSERTED = "CUDA error: device-side assert triggered"
MORE_LINES = "\nCUDA kernel errors might be asynchronously reported at some other API call.\n"
WAITS = ("synchronize", "stream.synchronize", "event.synchronize")


class CudaRecorder:
    """What it does not know is torch's own."""

    def __init__(self, own: ModuleType) -> None:
        self._own = own
        self.calls: list[tuple[Any, ...]] = []
        self.num_allowed = 1 << 30  # pieces of memory that it registers before it refuses
        self.is_broken = self.is_held = self.is_capturing = False
        self.held: list[RecordedEvent] = []  # events that the device has not reached, the oldest first
        self.id_of: Callable[[int], str] = "uuid-{}".format  # a GPU's identity, by its number
        self._current = [RecordedStream(self, 0)]  # the last one is
        self._num_streams = self._num_events = 0

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> "CudaRecorder":
        """A recorder that stands in for `torch.cuda` until the test ends. Host memory is pinned by its word only."""
        recorder, empty = cls(torch.cuda), torch.empty

        def maybe_pinned(*shape: Any, pin_memory: bool = False, **options: Any) -> Tensor:
            made = empty(*shape, **options)
            return made.as_subclass(PinnedTensor).noted_by(recorder) if pin_memory else made

        monkeypatch.setattr(torch, "cuda", recorder)
        monkeypatch.setattr(torch, "empty", maybe_pinned)
        return recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def break_down(self) -> None:
        """A kernel's assertion fails."""
        self.is_broken = True

    def hold(self) -> None:
        """The device does nothing any more."""
        self.is_held = True

    def reach(self, count: int) -> None:
        """It reaches so many events more."""
        del self.held[:count]

    def note(self, *call: Any) -> None:
        """Notes a call, and raises if the device is broken."""
        self.calls.append(call)
        if self.is_broken:
            raise torch.AcceleratorError(ASSERTED + MORE_LINES)

    @property
    def waits(self) -> list[str]:
        """The calls that wait for the device."""
        return [name for name, *_ in self.calls if name in WAITS]

    def tensor(self, *values: int) -> "DeviceTensor":
        """A tensor of the device."""
        return torch.tensor(values).as_subclass(DeviceTensor).noted_by(self)

    # ---- torch.cuda ----

    def cudart(self) -> "CudaRecorder":
        return self

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        self.calls.append(("register", address, num_bytes))
        self.num_allowed -= 1
        return 0 if self.num_allowed >= 0 else 2  # cudaErrorMemoryAllocation

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("unregister", address))
        return 0

    def synchronize(self, device: Any = None) -> None:
        self.note("synchronize")

    def get_device_properties(self, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(uuid=self.id_of(device.index))

    def current_stream(self, device: Any = None) -> "RecordedStream":
        return self._current[-1]

    def Stream(self, device: Any = None) -> "RecordedStream":
        self._num_streams += 1
        return RecordedStream(self, self._num_streams)

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    def Event(self) -> "RecordedEvent":
        self._num_events += 1
        return RecordedEvent(self, self._num_events)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        yield

    @contextmanager
    def stream(self, stream: "RecordedStream") -> Iterator[None]:
        self._current.append(stream)
        yield
        self._current.pop()


class RecordedStream:
    """A stream of the recorder."""

    def __init__(self, recorder: CudaRecorder, number: int) -> None:
        self._recorder = recorder
        self.number = number

    def query(self) -> bool:
        self._recorder.note("stream.query", self.number)
        return True

    def synchronize(self) -> None:
        self._recorder.note("stream.synchronize", self.number)

    def wait_event(self, event: "RecordedEvent") -> None:
        self._recorder.note("stream.wait_event", self.number, event.number)


class RecordedEvent:
    """An event of the recorder: done at once, unless the device is held."""

    def __init__(self, recorder: CudaRecorder, number: int) -> None:
        self._recorder = recorder
        self.number = number

    def record(self, stream: RecordedStream) -> None:
        self._recorder.note("event.record", self.number, stream.number)
        if self._recorder.is_held:
            self._recorder.held.append(self)

    def query(self) -> bool:
        self._recorder.note("event.query", self.number)
        return self not in self._recorder.held

    def synchronize(self) -> None:
        self._recorder.note("event.synchronize", self.number)


class NotedTensor(Tensor):
    """A tensor whose calls a recorder notes."""

    _recorder: CudaRecorder

    def noted_by(self, recorder: CudaRecorder) -> Self:
        self._recorder = recorder
        return self


class DeviceTensor(NotedTensor):
    """It lies in host memory, but says that it lies on the device."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def record_stream(self, stream: RecordedStream) -> None:  # type: ignore[override]
        self._recorder.note("record_stream", self.tolist(), stream.number)


class PinnedTensor(NotedTensor):
    """Host memory to which the device copies."""

    def copy_(self, source: Tensor, non_blocking: bool = False) -> Self:
        stream = self._recorder.current_stream().number
        self._recorder.note("copy to pinned memory", stream, "queued" if non_blocking else "waits")
        self.as_subclass(Tensor).copy_(source.as_subclass(Tensor))
        return self
