"""The same engines on a CUDA device: streams, pinned copies, KV staged through host memory, Triton attention."""

from pathlib import Path

import pytest
import torch

from model.fake import FakeRunner
from model.runner import ModelRunner
from protocol.request import SamplingParams
from tests.checkpoints import make_checkpoint
from tests.cluster import Cluster

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("topology", ["1P1D", "2P2D", "1U"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("page_size", [1, 16])
def test_every_token_is_right_on_cuda(topology: str, overlap: bool, page_size: int) -> None:
    runner = FakeRunner(context_length=512, device=torch.device("cuda"))
    cluster = Cluster(
        runner,
        topology,
        overlap=overlap,
        page_size=page_size,
        num_pages=4000 // page_size,
        mirrored="U" not in topology,
    )
    prompts = [[(7 * index + 3 * at) % runner.vocab_size for at in range(1 + 9 * index)] for index in range(8)]
    for index, prompt in enumerate(prompts):
        cluster.assign(f"r{index}", prompt, SamplingParams(max_tokens=16, temperature=0.0), n=1 + index % 2)
    cluster.run()
    for index, prompt in enumerate(prompts):
        for choice in range(1 + index % 2):
            assert cluster.answers[f"r{index}", choice].ids == runner.expected_tokens(prompt, 16)
    cluster.close()


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_greedy_tokens_on_cuda_equal_those_on_the_cpu(tmp_path: Path, topology: str) -> None:
    folder = make_checkpoint(tmp_path / "m", "qwen3")
    answers = []
    for device in ("cpu", "cuda"):
        runner = ModelRunner.load(folder, device=device, dtype="float32", context_length=256)
        cluster = Cluster(runner, topology, mirrored=device == "cuda" and topology == "1P1D")
        for index in range(6):
            prompt = [(5 * index + at) % 250 for at in range(3 + 11 * index)]
            cluster.assign(f"r{index}", prompt, SamplingParams(max_tokens=32, temperature=0.0))
        cluster.run()
        answers.append([cluster.answers[f"r{index}", 0].ids for index in range(6)])
        cluster.close()
    assert answers[0] == answers[1]
