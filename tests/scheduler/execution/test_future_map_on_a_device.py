"""The FutureMap on a device. The device asserts that each token was stashed, and the host does not wait for that."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scheduler.execution.batches import ScheduleBatch
from scheduler.execution.future_map import DraftExtras, FutureMap
from scheduler.execution.future_rows import OWNER_SHIFT, DraftInput
from scheduler.execution.streams_cuda import CudaStream
from scheduler.plan import Join
from tests.scheduler.building import draw

OWNER = 1 << OWNER_SHIFT
ROOT = Path(__file__).resolve().parents[3]


class DeviceTensor(Tensor):
    """Says that it is on a GPU, and so does everything computed from it. To read it on the host is a failure."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def __bool__(self) -> bool:
        raise AssertionError("the host waits for the device")


def on_device(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64).as_subclass(DeviceTensor)


@pytest.mark.parametrize("ids, is_valid", [((-1, 5, -2), True), ((-1, 5, -3), False), ((-3,), False), ((4, 5), True)])
def test_the_device_asserts_that_every_token_is_there(
    monkeypatch: pytest.MonkeyPatch, ids: tuple[int, ...], is_valid: bool
) -> None:
    asserted: list[tuple[Tensor, str]] = []
    monkeypatch.setattr(torch, "_assert_async", lambda condition, text: asserted.append((condition, text)))
    future_map = FutureMap(8, torch.device("cpu"))
    future_map.stash(torch.tensor([1, 2]), torch.tensor([10, 20]), torch.tensor([OWNER, OWNER]))
    future_map.resolve_future(on_device(*ids), torch.tensor([OWNER] * len(ids)))
    [(condition, text)] = asserted
    assert (condition.dtype, condition.numel()) == (torch.bool, 1)
    assert condition.as_subclass(Tensor).tolist() is is_valid
    assert "no launch has stashed" in text


SCRIPT = """
import sys
import torch
from scheduler.execution.future_map import FutureMap

future_map = FutureMap(8, torch.device("cuda"))
owners = torch.tensor([1 << 32, 1 << 32], device="cuda")
future_map.stash(torch.tensor([1], device="cuda"), torch.tensor([10], device="cuda"), owners[:1])
resolved = future_map.resolve_future(torch.tensor([-1, 7], device="cuda"), owners)
assert resolved.tolist() == [10, 7]
future_map.resolve_future(torch.tensor([-3], device="cuda"), owners[:1])
print("not waited", flush=True)
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    sys.exit(f"asserted: {error}")
"""


@pytest.mark.gpu
def test_the_assertion_of_a_device_ends_its_process() -> None:
    """A process of its own: after a failed assertion a device refuses everything."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode != 0 and done.stdout.strip() == "not waited"
    assert "asserted: " in done.stderr and "assert" in done.stderr.split("asserted: ")[1]


@pytest.mark.gpu
def test_lengths_and_draft_inputs_pass_between_the_streams_of_a_device() -> None:
    device = torch.device("cuda")
    forward, schedule = CudaStream(torch.cuda.Stream()), CudaStream(torch.cuda.current_stream())
    future_map = FutureMap(8, device, debug=True)
    batch = ScheduleBatch.of([Join(draw(row), 10 * row, None) for row in (3, 5)], device, speculates=True)
    owners_B, busy = batch.members.owners_B, torch.ones((2048, 2048), device=device)
    extras = DraftExtras(torch.tensor([[30], [50]], device=device), None, torch.ones((2, 4), device=device))

    def launch(seq_lens_B: Tensor) -> None:
        for _ in range(20):
            busy.matmul(busy)
        future_map.publish(batch.rows_B, seq_lens_B, owners_B)

    for step in range(1, 4):
        seq_lens_B = torch.tensor([30 + step, 50 + 2 * step], device=device)
        forward.wait(schedule.record())
        forward.launch([launch], seq_lens_B)
        future_map.expect(forward.record())
        forward.launch([lambda: future_map.stash(batch.rows_B, batch.rows_B, owners_B, extras)])
        future_map.resolve_seq_lens_cpu(batch, schedule)
        batch.check_mirrors()
        assert batch.seq_lens_cpu.tolist() == [30 + step, 50 + 2 * step]
        batch.spec_info = DraftInput.launched(batch.rows_B)

    resolved: list[DraftExtras] = []
    forward.launch([lambda: resolved.append(future_map.resolve_extras(batch.rows_B, owners_B))])
    forward.record().synchronize()
    assert [value.tolist() for value in resolved[0].tensors] == [value.tolist() for value in extras.tensors]
