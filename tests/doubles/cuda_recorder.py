"""A recorder in the place of `torch.cuda`: it notes every call in order, and can refuse memory or be broken.

recorder = CudaRecorder.installed(monkeypatch)
recorder.break_down()          # from now on every call of the device raises, as after a failed assertion
recorder.calls                 # names of the calls, with the arguments that matter
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

ASSERTED = "CUDA error: device-side assert triggered"
MORE_LINES = "\nCUDA kernel errors might be asynchronously reported at some other API call.\n"
WAITS = ("synchronize", "stream.synchronize", "event.synchronize")


class CudaRecorder:
    """What it does not know is torch's own."""

    def __init__(self, own: ModuleType) -> None:
        self._own = own
        self.calls: list[tuple[Any, ...]] = []
        self.num_allowed = 1 << 30  # pieces of memory that it registers before it refuses
        self.is_broken = False

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> "CudaRecorder":
        """A recorder that stands in for `torch.cuda` until the test ends."""
        recorder = cls(torch.cuda)
        monkeypatch.setattr(torch, "cuda", recorder)
        return recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def break_down(self) -> None:
        """A kernel's assertion fails."""
        self.is_broken = True

    def note(self, *call: Any) -> None:
        """Notes a call, and raises if the device is broken."""
        self.calls.append(call)
        if self.is_broken:
            raise torch.AcceleratorError(ASSERTED + MORE_LINES)

    @property
    def waits(self) -> list[str]:
        """The calls that wait for the device."""
        return [name for name, *_ in self.calls if name in WAITS]

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

    def current_stream(self, device: Any = None) -> "RecordedStream":
        return RecordedStream(self)

    def Stream(self, device: Any = None) -> "RecordedStream":
        return RecordedStream(self)

    def Event(self) -> "RecordedEvent":
        return RecordedEvent(self)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        yield

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        yield


class RecordedStream:
    """A stream of the recorder."""

    def __init__(self, recorder: CudaRecorder) -> None:
        self._recorder = recorder

    def query(self) -> bool:
        self._recorder.note("stream.query")
        return True

    def synchronize(self) -> None:
        self._recorder.note("stream.synchronize")

    def wait_event(self, event: Any) -> None:
        self._recorder.note("stream.wait_event")


class RecordedEvent:
    """An event of the recorder: done at once."""

    def __init__(self, recorder: CudaRecorder) -> None:
        self._recorder = recorder

    def record(self, stream: Any = None) -> None:
        self._recorder.note("event.record")

    def query(self) -> bool:
        self._recorder.note("event.query")
        return True

    def synchronize(self) -> None:
        self._recorder.note("event.synchronize")
