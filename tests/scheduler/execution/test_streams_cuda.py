"""Streams of a CUDA device, with a recorder in the place of `torch.cuda`: what they ask of it, and what becomes of a
device that breaks."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


# ---- what the streams ask of the device ----


def test_segments_run_with_their_stream_current(cuda: CudaRecorder) -> None:
    current = list[int]()

    def segment() -> None:
        current.append(torch.cuda.current_stream().number)  # type: ignore[attr-defined]

    forward, staging = CudaStream(torch.cuda.Stream()), CudaStream(torch.cuda.Stream())
    staging.launch([lambda: forward.launch([segment, segment]), segment])
    segment()
    assert current == [1, 1, 2, 0], "the streams that were current in two launches, in the outer one, and outside"


def test_the_allocator_hears_of_every_device_tensor_of_a_launch_before_its_segments_run(cuda: CudaRecorder) -> None:
    """Else it gives memory of another stream away while this one still reads it."""
    batch = SimpleNamespace(tensors=(cuda.tensor(2), torch.tensor([3]), cuda.tensor(4)))
    CudaStream(torch.cuda.Stream()).launch([lambda *_: cuda.note("segment")], cuda.tensor(1), batch)
    recorded = [("record_stream", [value], 1) for value in (1, 2, 4)]
    assert cuda.calls == [*recorded, ("segment",)], "record_stream of each tensor, for stream 1"


def test_a_stream_waits_on_the_device_for_an_event_of_another_one(cuda: CudaRecorder) -> None:
    forward, schedule = CudaStream(torch.cuda.Stream()), CudaStream(torch.cuda.current_stream())
    forward.wait(schedule.record())
    assert cuda.calls == [("event.record", 1, 0), ("stream.wait_event", 1, 1)], "stream 1 must wait for event 1"
    assert cuda.waits == [], "the host must not wait"


def test_a_stream_waits_on_the_host_for_an_event_of_a_thread(cuda: CudaRecorder) -> None:
    waited = list[str]()
    event: Any = SimpleNamespace(synchronize=lambda: waited.append("host"))
    CudaStream(torch.cuda.Stream()).wait(event)
    assert waited == ["host"] and cuda.calls == []


@pytest.mark.parametrize("name", ["record", "mark"])
def test_an_event_is_recorded_on_its_stream_and_the_host_waits_for_it(name: str, cuda: CudaRecorder) -> None:
    event = getattr(CudaStream(torch.cuda.Stream()), name)()
    assert event.done()
    event.synchronize()
    wanted = [("event.record", 1, 1), ("event.query", 1), ("event.synchronize", 1)]
    assert cuda.calls == wanted, "the event is recorded, asked and waited for"


def test_results_are_copied_to_pinned_memory_in_the_order_of_their_stream(cuda: CudaRecorder) -> None:
    stream, made = CudaStream(torch.cuda.Stream()), list[torch.Tensor]()
    stream.launch([lambda: made.append(stream.to_host(torch.tensor([5, 6])))])
    stream.launch([lambda: made.append(stream.to_host(torch.empty(0)))])  # of a launch without rows
    assert cuda.calls == [("copy to pinned memory", 1, "queued")] * 2
    assert stream.read_host(made[0]) == [5, 6] and stream.read_host(made[1]) == []


def test_a_copy_of_pages_runs_behind_what_the_schedule_stream_has_made(cuda: CudaRecorder) -> None:
    made = executor()
    made.submit(CopyPages(1, (1,), (2,)))
    orders = [call for call in cuda.calls if call[0] in ("event.record", "stream.wait_event")]
    assert orders == [("event.record", 1, 2), ("stream.wait_event", 1, 1), ("event.record", 2, 1)], (
        "event 1 of the schedule stream (2), for which the forward stream (1) waits, and event 2 behind the copy"
    )


# ---- a device that breaks ----

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
