"""The Triton kernel, interpreted, against the CPU backend. Run by test_attention_triton.py in a process of its own.

Triton decides when it is imported whether kernels are interpreted, so TRITON_INTERPRET=1 must be there from the start.
"""

import pytest
import torch

from model.attention_triton import TritonAttention, extend_tiles
from model.inputs import ModelInput
from tests.model.attention_cases import BATCHES, make_case, worst_difference


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("extends, decodes", BATCHES)
def test_equals_the_cpu_backend(extends: tuple[tuple[int, int], ...], decodes: tuple[int, ...], page_size: int) -> None:
    assert worst_difference(TritonAttention(4, 2), make_case(extends, decodes, page_size=page_size)) < 1e-5


@pytest.mark.parametrize("heads, head_dim", [((3, 3), 12), ((10, 2), 40), ((20, 1), 8)])
def test_odd_sizes(heads: tuple[int, int], head_dim: int) -> None:
    case = make_case(((12, 40), (7, 7)), (70, 5), page_size=4, heads=heads, head_dim=head_dim)
    assert worst_difference(TritonAttention(*heads), case) < 1e-5


def test_half_precision() -> None:
    """float16 only: the interpreter multiplies the raw bits of bfloat16 (a GPU test has that)."""
    case = make_case(((12, 40),), (30,), page_size=4, dtype="float16")
    assert worst_difference(TritonAttention(4, 2), case) < 0.005


def test_a_request_does_not_depend_on_its_neighbours() -> None:
    case = make_case((), (40, 7, 90), page_size=4)
    backend = TritonAttention(4, 2)
    together = backend.attend(case.q_THD, case.kv_layer, backend.plan(case.inp, case.layout))
    for row in range(3):
        own = {
            "positions_T": case.inp.positions_T[row : row + 1],
            "page_table_BP": case.inp.page_table_BP[row : row + 1],
            "seq_lens_B": case.inp.seq_lens_B[row : row + 1],
            "num_decodes": 1,
        }
        plan = backend.plan(ModelInput(**{**vars(case.inp), **own}), case.layout)
        alone = backend.attend(case.q_THD[row : row + 1], case.kv_layer, plan)
        assert torch.equal(alone[0], together[row])


def test_tiles_cover_every_token_once() -> None:
    tiles = extend_tiles((5, 1, 9), (5, 8, 20), 4)
    assert [(first, count) for _, first, count, _ in tiles] == [(0, 4), (4, 1), (5, 1), (6, 4), (10, 4), (14, 1)]
    assert [(request, position) for request, _, _, position in tiles] == [
        (0, 0),
        (0, 4),
        (1, 7),
        (2, 11),
        (2, 15),
        (2, 19),
    ]
