"""Grouped experts, interpreted. Run by test_experts_triton.py in a process of its own, with TRITON_INTERPRET=1."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import tests.interpreted  # noqa: F401 - mends what the installed versions need
from model import experts_triton
from model.experts_triton import TritonExperts
from model.runner import ModelRunner
from testkit.checkpoints import Architecture, make_checkpoint
from tests.model.driving import Lanes, random_prompt
from tests.model.experts_cases import CASES, ExpertsCase, check_experts, check_not_finite, check_rows, random_case

CPU = torch.device("cpu")
SMALL = partial(TritonExperts.of, tiles=experts_triton.Tiles(16, 32, 32))  # so that few tokens take several blocks


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_tiles_of_a_gpu(case: ExpertsCase) -> None:
    check_experts(TritonExperts.of, case, "float32", CPU)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES[3:5], ids=str)
def test_the_tiles_of_numbers_of_two_bytes(case: ExpertsCase, dtype: str) -> None:
    check_experts(TritonExperts.of, case, dtype, CPU)


@pytest.mark.parametrize("seed", range(6))
def test_mixtures_of_any_sizes(seed: int) -> None:
    check_experts(SMALL, random_case(seed), ("float32", "bfloat16")[seed % 2], CPU)


@pytest.mark.parametrize("seed, dtype", [(10, "float32"), (11, "bfloat16")])
def test_other_tokens_change_no_bit(seed: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numpy's product of matrices may round the rows of one tile in different ways, which a GPU's does not."""
    monkeypatch.setattr(np, "matmul", partial(np.einsum, "rs,sc->rc"))
    case = replace(random_case(seed), num_tokens=17)
    check_rows(SMALL, case, dtype, CPU, num_alone=2)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # infinity times zero, of numpy
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_tokens_that_are_not_finite() -> None:
    check_not_finite(SMALL, CPU)


@pytest.mark.parametrize("arch", ["gpt_oss"])
def test_a_model_whose_experts_are_grouped_gives_the_same_logits(
    tmp_path: Path, arch: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_checkpoint(tmp_path / arch, arch)

    def load() -> ModelRunner:
        return ModelRunner.load(folder, device="cpu", dtype="float32", cpu_kernels=False)

    plain = load()
    monkeypatch.setattr("model.weights.is_grouped", lambda feed, device: device.type == "cpu" and feed.count > 0)
    runner = load()
    kinds = [type(layer.feed) for layer in runner.decoder.layers]
    assert TritonExperts in kinds and TritonExperts not in [type(layer.feed) for layer in plain.decoder.layers]
    prompt = random_prompt(11, 307, seed=1)
    assert Lanes(runner, 16).generate(prompt, 2) == Lanes(plain, 16).generate(prompt, 2)
