"""The sampler's kernels, interpreted. Run by test_sampler_triton.py in its own process, with TRITON_INTERPRET=1."""

import pytest
import torch

import tests.interpreted  # noqa: F401 - mends what the installed versions need
from model.sampler_triton import Tiles, TritonDraws
from tests.model.driving import Row, sampling
from tests.model.sampler_cases import (
    VOCABS,
    check_bad_rows,
    check_draw,
    check_grammars,
    check_mixes,
    logits_of,
)

CPU = torch.device("cpu")
SMALL = TritonDraws(Tiles(2, 32, 4))  # so that few tokens take several tiles


@pytest.mark.parametrize("vocab_size", VOCABS)
def test_any_mix_draws_like_torch(vocab_size: int) -> None:
    check_mixes(SMALL, CPU, vocab_size, 24, exact=True)


@pytest.mark.parametrize("shape", ["normal", "ties", "flat"])
def test_the_tiles_of_a_gpu(shape: str) -> None:
    rows: list[Row] = [{"seed": 1}, {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 2}, {"top_p": 0.97, "seed": 3}]
    logits_LV = torch.cat([logits_of(shape, 20_001, seed) for seed in range(3)])
    check_draw(TritonDraws(), CPU, logits_LV, rows, exact=True)


@pytest.mark.parametrize("top_p", [0.05, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("top_k", [0, 7, 50])
def test_of_equal_logits_those_with_the_higher_ids_stay(top_k: int, top_p: float) -> None:
    rows: list[Row] = [{"top_k": top_k, "top_p": top_p, "seed": seed} for seed in range(3)]
    logits_LV = torch.cat([logits_of(shape, 150, 4) for shape in ("ties", "equal", "holes")])
    check_draw(SMALL, CPU, logits_LV, rows, exact=True)


@pytest.mark.filterwarnings("ignore:invalid value")  # of numpy, which stands for the GPU: inf less inf
def test_rows_that_are_not_finite() -> None:
    check_bad_rows(SMALL, CPU)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("vocab_size", [40, 64, 5000])
def test_grammars(vocab_size: int) -> None:
    check_grammars(SMALL, CPU, vocab_size)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_a_temperature_by_which_logits_overflow_is_greedy() -> None:
    rows = [{"temperature": 1e-29, "top_p": 0.5}, {"temperature": 1e-29}]
    logits_LV = 1e12 * logits_of("normal", 70, 1).repeat(2, 1)
    assert SMALL.draw(logits_LV, sampling(*rows)).tokens_L.tolist() == logits_LV.argmax(1).tolist()
