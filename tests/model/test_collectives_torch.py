"""Collectives on GPUs: one rank, called and in a graph; two ranks on two GPUs; two on one GPU, which is refused.

On a CPU gloo stands in for NCCL, and a "graph" runs what it captured again.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from model.collectives import agree, outside_steps
from model.collectives_torch import TorchCollectives
from model.cuda_capture import CudaCapture
from model.graphs import GraphedRunner
from model.group_meeting import open_collectives
from model.runner import ModelRunner
from protocol.errors import ConfigError
from protocol.messages_group import GroupPlace
from testkit.checkpoints import make_checkpoint
from tests.model.driving import Lanes, random_prompt
from tests.model.ranks import LIMIT_S, in_threads, over_gloo
from tests.model.speculating import again
from tests.processes import python_path

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def of_one_rank(device: str, folder: Path, main: Callable[[TorchCollectives], T]) -> T:
    """What `main` returns for a group of one rank on this device."""
    if device == "cpu":
        return over_gloo(1, folder, main, debug=False)[0]
    ranks = open_collectives(GroupPlace("g", 1, 0, 1), str(folder), torch.device("cuda", 0), timeout_s=LIMIT_S)
    assert isinstance(ranks, TorchCollectives)
    try:
        return main(ranks)
    finally:
        ranks.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operation", ["gather", "exchange"])
def test_one_rank_gets_what_it_gives_also_from_a_graph(operation: str, device: str, tmp_path: Path) -> None:
    def main(ranks: TorchCollectives) -> None:
        given_RPE = torch.randn(1, 5, 8, device=device)
        taken_RPE = torch.empty_like(given_RPE)
        step = outside_steps(1, 5, graphs=True)

        def run() -> None:
            found = ranks.gather(given_RPE[0], step) if operation == "gather" else ranks.exchange(given_RPE, step)
            taken_RPE.copy_(found)

        run()
        assert torch.equal(taken_RPE, given_RPE)
        replay = (CudaCapture() if device == "cuda" else again)(run)
        for _ in range(3):
            given_RPE.normal_()
            taken_RPE.fill_(float("nan"))
            replay()
            assert torch.equal(taken_RPE, given_RPE)
        assert agree(ranks, True, given_RPE.device) and not agree(ranks, False, given_RPE.device)
        assert ranks.doing == ""

    of_one_rank(device, tmp_path, main)


@pytest.mark.parametrize("device", DEVICES)
def test_a_group_of_one_rank_decodes_as_a_worker_without_a_group(device: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", "qwen3", intermediate_size=96)
    options = {"device": device, "dtype": "float32"}
    prompt = random_prompt(7, 97, 1)
    expected = Lanes(ModelRunner.load(folder, **options), 2).generate(prompt, 6)  # type: ignore[arg-type]

    def main(ranks: TorchCollectives) -> None:
        runner = ModelRunner.load(folder, collectives=ranks, **options)  # type: ignore[arg-type]
        graphed = GraphedRunner(runner, CudaCapture() if device == "cuda" else again)
        lanes = Lanes(graphed, 2)
        graphed.capture(lanes.kv, 2, 12)
        assert graphed.why_none == ""
        lane = lanes.lane(prompt, 16)
        while len(lane.tokens) < len(prompt) + 6:
            count, is_decode = len(lane.tokens) - lane.done, lane.done > 0
            inp = lanes.model_input([], [lane]) if is_decode else lanes.model_input([(lane, count)], [])
            step = outside_steps(1, count, graphs=is_decode)
            logits_LV = graphed.forward(replace(inp, step=step), lanes.kv)
            lane.done = len(lane.tokens)
            lane.tokens.append(int(logits_LV[0].argmax()))
        assert lane.tokens[len(prompt) :] == expected and graphed.num_replays == 5

    of_one_rank(device, tmp_path, main)


@pytest.mark.gpu
def test_two_ranks_on_one_gpu_are_refused_in_words(tmp_path: Path) -> None:
    def main(rank: int) -> str:
        place = GroupPlace("g", 1, rank, 2)
        with pytest.raises(ConfigError) as refused:
            open_collectives(place, str(tmp_path), torch.device("cuda", 0), timeout_s=LIMIT_S)
        return str(refused.value)

    first, second = in_threads(2, main)
    assert first == second and first.startswith("gpus: ranks 0 and 1 of group g are both on the GPU ")


RANK = """
import sys, torch
from model.cuda_capture import CudaCapture
from model.group_meeting import open_collectives
from protocol.messages_group import GroupPlace, StepShape
rank, device = int(sys.argv[2]), torch.device("cuda", int(sys.argv[2]))
torch.cuda.set_device(device)
ranks = open_collectives(GroupPlace("g", 1, rank, 2), sys.argv[1], device, timeout_s=60)
own, step = torch.full((2, 4), rank + 1.0, device=device), StepShape(1, (2, 2), True)
taken = torch.empty(2, 2, 4, device=device)
def run():
    taken.copy_(ranks.exchange(ranks.gather(own, step) * (rank + 1), step))
run()
called = taken[:, 0, 0].tolist()
replay = CudaCapture()(run)
own.add_(2)
replay()
print(called, taken[:, 0, 0].tolist())
"""


@pytest.mark.gpu
def test_two_ranks_on_two_gpus_get_what_they_give_one_another(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("a group of two ranks needs two GPUs: NCCL refuses two ranks on one")
    commands = [[sys.executable, "-c", RANK, str(tmp_path), str(rank)] for rank in range(2)]
    env = os.environ | {"PYTHONPATH": python_path(ROOT)}
    children = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True, env=env) for each in commands]
    try:
        said = [child.communicate(timeout=LIMIT_S)[0].strip() for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    # Rank r takes part r of what rank s gives: (r + 1) * (s + 1), and after 2 is added (r + 3) * (s + 1).
    assert said == ["[1.0, 2.0] [3.0, 6.0]", "[2.0, 4.0] [4.0, 8.0]"]
