"""Ranks meet in a folder: one that never comes, comes twice or is killed is named at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model.group_meeting import open_collectives
from protocol.errors import ConfigError, GroupBroken, Unavailable
from protocol.messages_group import GroupPlace, StepShape
from tests.model.ranks import CPU, LIMIT_S
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
