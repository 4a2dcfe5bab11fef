"""Which collective a device is in, with a recorder for `torch.cuda`. A test says which events it reached."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from model.collectives_torch import TorchCollectives
from model.device_calls import MANY
from protocol.messages_group import GroupPlace, StepShape
from tests.doubles.cuda_recorder import CudaRecorder


class Queues:
    """A process group: it takes a call and returns at once, as NCCL does."""

    def __init__(self) -> None:
        self.num_calls = 0

    def alltoall_base(self, taken: Tensor, given: Tensor, *_: Any) -> "Queues":
        self.num_calls += 1
        taken.copy_(given)
        return self

    def wait(self) -> None:
        """The stream waits, not the host."""


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaRecorder:
    return CudaRecorder.installed(monkeypatch)


def opened(group: Queues) -> TorchCollectives:
    return TorchCollectives(group, GroupPlace("g", 1, 0, 2), torch.device("cuda", 0))


def run_step(ranks: TorchCollectives, step: int, num_layers: int) -> None:
    shape = StepShape(step, (3, 3))
    for _ in range(num_layers):
        ranks.gather(torch.ones(3, 4), shape)
        ranks.exchange(torch.ones(2, 3, 4), shape)


def test_a_device_is_in_a_call_from_the_event_before_it_to_the_event_behind_it(cuda: CudaRecorder) -> None:
    group = Queues()
    ranks = opened(group)
    cuda.hold()
    run_step(ranks, 7, 2)
    assert group.num_calls == 4 and cuda.waits == [], "all calls are queued, and the host has waited for none"
    found = []
    for _ in range(9):
        found.append((ranks.doing, ranks.waits))
        cuda.reach(1)
    names = ["gather 0", "exchange 0", "gather 1", "exchange 1"]
    between = ("", False)
    assert found == [between, *[each for name in names for each in ((f"{name} of step 7", True), between)]]


def test_steps_that_are_queued_one_behind_the_other_are_told_apart(cuda: CudaRecorder) -> None:
    ranks = opened(Queues())
    cuda.hold()
    for step in (7, 8):
        run_step(ranks, step, 1)
    cuda.reach(5)
    assert ranks.doing == "gather 0 of step 8"


def test_a_graph_that_is_captured_gets_no_events(cuda: CudaRecorder) -> None:
    """torch refuses to ask them, and the capture would end."""
    ranks = opened(Queues())
    cuda.is_capturing = True
    run_step(ranks, 0, 3)
    assert cuda.calls == [] and ranks.doing == ""


def test_over_gloo_a_call_blocks_and_no_event_is_recorded(cuda: CudaRecorder) -> None:
    ranks = TorchCollectives(Queues(), GroupPlace("g", 1, 0, 2), torch.device("cpu"))
    run_step(ranks, 1, 2)
    assert cuda.calls == [] and (ranks.doing, ranks.waits) == ("", False)


def test_a_broken_device_is_told_of(cuda: CudaRecorder) -> None:
    ranks = opened(Queues())
    run_step(ranks, 1, 1)
    cuda.break_down()
    with pytest.raises(torch.AcceleratorError):
        _ = ranks.doing


@pytest.mark.parametrize("seed", range(20))
def test_it_names_the_oldest_call_that_is_not_over_whenever_it_is_asked(seed: int, cuda: CudaRecorder) -> None:
    """And it keeps no more events than calls that may be under way."""
    rng, ranks, num_queued, num_reached = random.Random(seed), opened(Queues()), 0, 0
    cuda.hold()
    for _ in range(600):
        if rng.random() < 0.4 or num_queued * 2 == num_reached:
            ranks.gather(torch.ones(1, 1), StepShape(num_queued + 1, (1, 1)))
            num_queued += 1
        else:
            count = rng.randint(1, num_queued * 2 - num_reached)
            cuda.reach(count)
            num_reached += count
        if rng.random() < 0.3:
            at = f"gather 0 of step {num_reached // 2 + 1}" if num_reached % 2 else ""
            assert ranks.doing == at


def test_events_are_recorded_again_where_nobody_asks(cuda: CudaRecorder) -> None:
    ranks = opened(Queues())
    for step in range(1, 6 * MANY):
        run_step(ranks, step, 1)
    assert max(number for name, number, *_ in cuda.calls if name == "event.record") <= 2 * MANY + 2
