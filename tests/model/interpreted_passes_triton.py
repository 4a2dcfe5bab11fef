"""The passes, interpreted. Run by test_passes_triton.py in a process of its own, with TRITON_INTERPRET=1."""

import pytest
import torch

import tests.interpreted  # noqa: F401 - mends what the installed versions need
from model.passes_triton import TritonPasses
from tests.model.passes_cases import (
    GATED_CASES,
    NORM_CASES,
    PLACE_CASES,
    PlaceCase,
    check_gated,
    check_norms,
    check_place,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", PLACE_CASES, ids=str)
def test_place(case: PlaceCase, dtype: str) -> None:
    check_place(TritonPasses, case, dtype, CPU)


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")  # infinity times zero
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("num_tokens, width", NORM_CASES)
def test_norms(num_tokens: int, width: int, dtype: str) -> None:
    check_norms(TritonPasses, num_tokens, width, dtype, CPU)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of numpy, which stands for the GPU
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("num_tokens, width", GATED_CASES)
def test_gated(num_tokens: int, width: int, dtype: str) -> None:
    check_gated(TritonPasses, num_tokens, width, dtype, CPU)
