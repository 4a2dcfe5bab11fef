"""The ranks of a group as threads of a test: with collectives that meet in memory, of a host, or over gloo."""

import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from model.collectives_host import HostCollectives
from model.collectives_torch import TorchCollectives
from model.group_meeting import open_collectives
from protocol.errors import GroupBroken
from protocol.messages_group import GroupPlace, StepShape

T = TypeVar("T")
CPU: Final = torch.device("cpu")
LIMIT_S: Final = 60.0  # no test waits so long, unless it fails
Entered = tuple[str, int, tuple[int, ...]]  # the operation, the step, the shape of what the rank has given


class Meeting:
    """Where the ranks of one group hand over tensors: the n-th call of one is the n-th call of all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._calls: defaultdict[int, dict[int, tuple[Entered, Tensor]]] = defaultdict(dict)
        self._ended: set[int] = set()
        self._changed = threading.Condition()

    def leave(self, rank: int) -> None:
        """The rank enters no more calls."""
        with self._changed:
            self._ended.add(rank)
            self._changed.notify_all()

    def enter(self, rank: int, index: int, call: Entered, given: Tensor) -> list[Tensor]:
        """What every rank gives. GroupBroken if a rank enters another call, or none any more."""
        with self._changed:
            entered = self._calls[index]
            entered[rank] = (call, given.clone())
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(entered) == self.size or self._ended - entered.keys(), LIMIT_S)
        if len(entered) < self.size:
            missing = sorted(set(range(self.size)) - entered.keys())
            raise GroupBroken(f"rank {rank} enters {call}, but ranks {missing} never do")
        for other, (theirs, _) in entered.items():
            if theirs != call:
                raise GroupBroken(f"rank {rank} enters {call}, rank {other} enters {theirs}")
        return [entered[each][1] for each in range(self.size)]


class MetCollectives:
    """One rank of a meeting. `entered` is what it has entered; see Collectives."""

    doing = ""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.size = rank, meeting.size
        self.entered: list[Entered] = []
        self._num_calls = 0
        self.meeting = meeting

    def gather(self, own_PE: Tensor, step: StepShape) -> Tensor:
        """See Collectives."""
        return torch.stack(self._enter(("gather", step.step, tuple(own_PE.shape)), own_PE))

    def exchange(self, parts_RPE: Tensor, step: StepShape) -> Tensor:
        """See Collectives."""
        every = self._enter(("exchange", step.step, tuple(parts_RPE.shape)), parts_RPE)
        return torch.stack([parts[self.rank] for parts in every])

    def _enter(self, call: Entered, given: Tensor) -> list[Tensor]:
        self.entered.append(call)
        self._num_calls += 1
        return self.meeting.enter(self.rank, self._num_calls, call, given)


def in_threads(size: int, main: Callable[[int], T]) -> list[T]:
    """What `main(rank)` returns, by rank. Raises what a rank has raised, the least likely to be a consequence first."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = main(rank)
        except BaseException as error:  # noqa: BLE001 - raised again on the test's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    if errors:
        raise min(errors, key=lambda error: isinstance(error, GroupBroken))
    assert len(results) == size, "a rank hangs"
    return [results[rank] for rank in range(size)]


def met(size: int, main: Callable[[MetCollectives], T]) -> list[T]:
    """What `main` returns for each rank of a group that meets in memory."""
    meeting = Meeting(size)

    def run(rank: int) -> T:
        try:
            return main(MetCollectives(meeting, rank))
        finally:
            meeting.leave(rank)

    return in_threads(size, run)


def on_host(size: int, folder: Path, main: Callable[[HostCollectives], T]) -> list[T]:
    """Runs `main` on each rank of a group on CPUs, which meets in `folder`. Returns the results, by rank."""

    def run(rank: int) -> T:
        ranks = open_collectives(GroupPlace("g", 1, rank, size), str(folder), CPU, timeout_s=LIMIT_S)
        assert isinstance(ranks, HostCollectives)
        try:
            return main(ranks)
        finally:
            ranks.close()

    return in_threads(size, run)


def over_gloo(size: int, folder: Path, main: Callable[[TorchCollectives], T], *, debug: bool = True) -> list[T]:
    """As `on_host`, with what GPUs use, and gloo in the place of NCCL."""
    store = dist.FileStore(str(folder / "gloo"), size)

    def run(rank: int) -> T:
        group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=LIMIT_S))
        ranks = TorchCollectives(group, GroupPlace("g", 1, rank, size), CPU, debug=debug)
        del group  # else it would outlive `close`
        try:
            return main(ranks)
        finally:
            ranks.close()

    return in_threads(size, run)
