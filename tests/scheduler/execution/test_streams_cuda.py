"""Streams of a CUDA device, with a recorder in the place of `torch.cuda`: what becomes of a device that breaks."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from model.paged_kv import PagedKv
from scheduler.execution.executor import Executor
from scheduler.execution.streams import DeviceBroken
from scheduler.execution.streams_cuda import CudaEvent, CudaStream
from scheduler.plan import CopyPages, Done
from tests.doubles.cuda_recorder import ASSERTED, CudaRecorder
from tests.doubles.hash_model import FakeRunner

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaRecorder:
    return CudaRecorder.installed(monkeypatch)


CALLS: dict[str, Callable[[CudaStream, CudaEvent], object]] = {
    "done": lambda stream, event: event.done(),
    "synchronize": lambda stream, event: event.synchronize(),
    "record": lambda stream, event: stream.record(),
    "mark": lambda stream, event: stream.mark(),
    "wait": lambda stream, event: stream.wait(event),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_of_a_broken_device_names_the_cause(name: str, cuda: CudaRecorder) -> None:
    stream = CudaStream(torch.cuda.Stream())
    event = stream.record()
    assert isinstance(event, CudaEvent) and event.done()
    CALLS[name](stream, event)
    cuda.break_down()
    with pytest.raises(DeviceBroken) as caught:
        CALLS[name](stream, event)
    assert caught.value.message == ASSERTED
    assert isinstance(caught.value.__cause__, torch.AcceleratorError)


def test_a_stream_that_closes_waits_for_its_device(cuda: CudaRecorder) -> None:
    CudaStream(torch.cuda.Stream()).close()
    assert cuda.waits == ["stream.synchronize"]


def test_a_stream_of_a_broken_device_closes_without_waiting(cuda: CudaRecorder) -> None:
    stream = CudaStream(torch.cuda.Stream())
    cuda.break_down()
    stream.close()
    assert cuda.waits == []


def executor() -> Executor:
    runner = FakeRunner(context_length=16)
    streams = [CudaStream(torch.cuda.Stream()) for _ in range(3)]
    kv = PagedKv(runner.kv_layout(4), 6)
    return Executor(runner, kv, num_rows=3, max_pages=4, forward=streams[0], schedule=streams[1], staging=streams[2])


def test_an_executor_tells_that_its_device_is_broken_and_closes_without_waiting(cuda: CudaRecorder) -> None:
    made = executor()
    made.submit(CopyPages(1, (1,), (2,)))
    assert made.poll() == [Done(1)]
    made.submit(CopyPages(2, (1,), (2,)))
    cuda.break_down()
    with pytest.raises(DeviceBroken, match=ASSERTED):
        made.poll()
    made.close()
    assert cuda.waits == []


def test_an_executor_whose_copy_has_failed_names_the_cause(cuda: CudaRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    made = executor()

    def fails(*pages: object) -> None:
        raise RuntimeError("an illegal memory access\nand advice")

    monkeypatch.setattr(made.kv, "copy_pages", fails)
    made.submit(CopyPages(1, (1,), (2,)))
    with pytest.raises(DeviceBroken, match=r"^a copy of KV pages has failed: an illegal memory access$"):
        made.poll()


SCRIPT = """
import sys
import torch
from scheduler.execution.streams import DeviceBroken
from scheduler.execution.streams_cuda import CudaStream

stream, other = CudaStream(torch.cuda.Stream()), CudaStream(torch.cuda.current_stream())
try:
    stream.launch([lambda: torch._assert_async(torch.zeros(1, dtype=torch.bool, device="cuda"))])
    event = stream.record()
    while not event.done():
        pass
except DeviceBroken as broken:
    stream.close()
    other.close()
    print(f"closed after: {broken.message}", flush=True)
"""


@pytest.mark.gpu
def test_a_failed_assertion_of_a_gpu_is_named_and_its_streams_close() -> None:
    """A process of its own: after a failed assertion a device refuses everything."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("closed after: CUDA error: device-side assert"), done.stderr
