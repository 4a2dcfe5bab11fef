"""Ranks meet in a folder: one that never comes, comes twice, shares a GPU or is killed is named at once."""

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from model import group_meeting
from model.group_meeting import open_collectives
from protocol.errors import ConfigError, GroupBroken, Unavailable
from protocol.messages_group import GroupPlace, StepShape
from tests.doubles.cuda_recorder import CudaRecorder
from tests.model.ranks import CPU, LIMIT_S, in_threads
from tests.processes import python_path

ROOT = Path(__file__).resolve().parents[2]


def test_a_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    place = GroupPlace("left", 4, 1, 3)
    expected = r"group left: 1 of 3 ranks came within 0\.1 s, expected rank 0, 2 too"
    with pytest.raises(Unavailable, match=expected):
        open_collectives(place, str(tmp_path), CPU, timeout_s=0.1)


def test_a_rank_that_comes_twice_is_refused_and_another_epoch_is_another_meeting(tmp_path: Path) -> None:
    place = GroupPlace("g", 4, 0, 1)
    open_collectives(place, str(tmp_path), CPU, timeout_s=LIMIT_S).close()
    with pytest.raises(ConfigError, match="group g: rank 0 of 1 has come before in epoch 4, expected every rank once"):
        open_collectives(place, str(tmp_path), CPU, timeout_s=LIMIT_S)
    open_collectives(GroupPlace("g", 5, 0, 1), str(tmp_path), CPU, timeout_s=LIMIT_S).close()


def test_a_gpu_without_nccl_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigError, match="device: got cuda:1, but this torch has no NCCL"):
        open_collectives(GroupPlace("g", 1, 0, 2), str(tmp_path), torch.device("cuda", 1), timeout_s=LIMIT_S)


class Nccl:
    """Stands for NCCL on GPUs: notes which ranks open it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, recorder: CudaRecorder) -> None:
        self.opened: list[GroupPlace] = []
        self.recorder = recorder
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
        monkeypatch.setattr(group_meeting, "open_nccl", self._open)

    def _open(self, store: Any, place: GroupPlace, timeout_s: float) -> None:
        self.opened.append(place)

    def meet(self, folder: Path, gpus: Sequence[int]) -> list[str]:
        """What each rank of a group says whose ranks are on GPUs of these numbers; "" for one that opens NCCL."""

        def join(rank: int) -> str:
            place, device = GroupPlace("g", 1, rank, len(gpus)), torch.device("cuda", gpus[rank])
            try:
                open_collectives(place, str(folder), device, timeout_s=LIMIT_S)
            except ConfigError as error:
                return str(error)
            return ""

        return in_threads(len(gpus), join)


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Nccl:
    return Nccl(monkeypatch, CudaRecorder.installed(monkeypatch))


@pytest.mark.parametrize("gpus", [*product(range(2), repeat=2), *product(range(3), repeat=3)])
def test_ranks_on_one_gpu_are_refused_by_all_before_nccl_is_opened(
    nccl: Nccl, tmp_path: Path, gpus: tuple[int, ...]
) -> None:
    """With any numbers that ranks give their GPUs, also where NCCL says "Duplicate GPU detected", or hangs."""
    said = nccl.meet(tmp_path, gpus)
    if len(set(gpus)) == len(gpus):
        assert said == [""] * len(gpus) and {place.rank for place in nccl.opened} == set(range(len(gpus)))
        return
    assert not nccl.opened and len(set(said)) == 1
    second = next(rank for rank, gpu in enumerate(gpus) if gpu in gpus[:rank])
    first = gpus.index(gpus[second])
    words = f"gpus: ranks {first} and {second} of group g are both on the GPU uuid-{gpus[second]}, expected a GPU of"
    assert said[0].startswith(words)


def test_ranks_that_see_different_gpus_by_the_same_number_are_a_group(nccl: Nccl, tmp_path: Path) -> None:
    """As with a CUDA_VISIBLE_DEVICES of its own for each process."""
    ids = iter(("uuid-a", "uuid-b"))
    nccl.recorder.id_of = lambda index: next(ids)
    assert nccl.meet(tmp_path, (0, 0)) == ["", ""] and len(nccl.opened) == 2


def test_a_group_of_one_rank_meets_on_a_gpu(nccl: Nccl, tmp_path: Path) -> None:
    assert nccl.meet(tmp_path, (1,)) == [""] and nccl.opened == [GroupPlace("g", 1, 0, 1)]


DYING = """
import sys, torch
from model.group_meeting import open_collectives
from protocol.messages_group import GroupPlace, StepShape
ranks = open_collectives(GroupPlace("g", 1, 1, 2), sys.argv[1], torch.device("cpu"), timeout_s=60)
ranks.gather(torch.zeros(1, 4), StepShape(1, (1, 1)))
sys.stdout.write("gathered")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_process_that_is_killed_breaks_the_group(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", DYING, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, env=os.environ | {"PYTHONPATH": python_path(ROOT)}
    ) as other:
        ranks = open_collectives(GroupPlace("g", 1, 0, 2), str(tmp_path), CPU, timeout_s=LIMIT_S)
        ranks.gather(torch.zeros(1, 4), StepShape(1, (1, 1)))
        assert other.stdout is not None and other.stdout.read(8) == b"gathered"
        other.kill()
        with pytest.raises(GroupBroken, match="rank 0: gather 0 of step 2 has failed: "):
            ranks.gather(torch.zeros(1, 4), StepShape(2, (1, 1)))
        ranks.close()
