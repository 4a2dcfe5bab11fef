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


@pytest.mark.parametrize("num_tokens, num_experts, num_chosen", [(1, 9, 4), (40, 5, 2), (23, 3, 3), (70, 4, 1)])
def test_blocks_have_every_pair_once_in_the_order_of_tokens(num_tokens: int, num_experts: int, num_chosen: int) -> None:
    """Programs read few pairs at once here, so that they begin again several times. The last expert has no tokens."""
    generator = torch.Generator().manual_seed(num_tokens)
    scores_TX = torch.rand((num_tokens, max(num_chosen, num_experts - 1)), generator=generator)
    chosen_TK, rows = scores_TX.topk(num_chosen).indices.sort().values, 4
    num_pairs = chosen_TK.numel()
    num_blocks = min(num_pairs, num_pairs // rows + num_experts)
    pairs_P, blocks_B3 = torch.full((num_pairs,), -1).int(), torch.full((num_blocks, 3), -1).int()
    experts_triton.sort_kernel[(num_experts,)](chosen_TK, pairs_P, blocks_B3, num_pairs, ROWS=rows, LANES=16)

    assert pairs_P.tolist() == chosen_TK.flatten().argsort(stable=True).tolist()
    counts = chosen_TK.flatten().bincount(minlength=num_experts).tolist()
    used = [block for block in blocks_B3.tolist() if block[2] > 0]
    starts = [sum(counts[:expert]) for expert in range(num_experts)]
    assert used == [
        [expert, starts[expert] + done, min(rows, counts[expert] - done)]
        for expert in range(num_experts)
        for done in range(0, counts[expert], rows)
    ]


@pytest.mark.parametrize(
    "values, shared, total", [((1e8, 1.0, -1e8, 1.0), None, 1.0), ((1.0, 1.0, 1e8, -1e8), 4.0, 4.0)]
)
def test_the_order_of_the_sum_is_that_of_the_experts(
    values: tuple[float, ...], shared: float | None, total: float
) -> None:
    """In other orders it is another one in float32. Numbers behind the last piece of a token are not written."""
    num_tokens, hidden = 3, 21
    each_PE = torch.tensor(values).repeat(num_tokens)[:, None].expand(-1, hidden).contiguous()
    shared_TE = each_PE if shared is None else torch.full((num_tokens, hidden), shared)
    out_TE = torch.full((num_tokens + 1, hidden), 7.0)
    sizes = {"HIDDEN": hidden, "CHOSEN": len(values), "SHARED": shared is not None, "PIECE": 16}
    weights_TK = torch.ones((num_tokens, len(values)))
    experts_triton.sum_kernel[(num_tokens, 2)](each_PE, weights_TK, shared_TE, out_TE, **sizes)
    assert out_TE[:num_tokens].unique().tolist() == [total] and out_TE[num_tokens].unique().tolist() == [7.0]


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
