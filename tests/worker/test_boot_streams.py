"""The streams of a worker's device."""

import pytest
import torch

from scheduler.execution.streams import HostStream, InlineStream
from tests.doubles.cuda_recorder import CudaRecorder
from worker.boot import open_streams


def test_forwards_of_a_gpu_have_a_stream_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule stream is the one that is current on the scheduler's thread, where it makes inputs."""
    CudaRecorder.installed(monkeypatch)
    numbers = list[int]()
    for stream in open_streams(torch.device("cuda"), lambda: None):
        stream.launch([lambda: numbers.append(torch.cuda.current_stream().number)])  # type: ignore[attr-defined]
    assert numbers == [1, 0], "the streams on which forwards and schedule work run; 0 is the thread's own"


def test_forwards_of_a_cpu_have_a_thread_of_their_own() -> None:
    forward, schedule = open_streams(torch.device("cpu"), lambda: None)
    assert isinstance(forward, HostStream) and isinstance(schedule, InlineStream)
    forward.close()
