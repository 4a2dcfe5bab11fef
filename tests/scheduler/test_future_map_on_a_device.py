"""What a device says when a launch reads a token that nobody has stashed: it asserts, and the host does not wait."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scheduler.row_tables import OWNER_SHIFT, FutureMap

OWNER = 1 << OWNER_SHIFT
ROOT = Path(__file__).resolve().parents[2]


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
from scheduler.row_tables import FutureMap

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
