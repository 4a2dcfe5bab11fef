"""Kernels read the lengths of a launch one after the other, whatever columns they were cut from."""

import pytest
import torch

from scheduler.execution.spans import Spans

SLOTS_BX = torch.tensor([[8, 9, 10], [40, 41, 42]])
SPANS = Spans(
    torch.stack((SLOTS_BX + 1, SLOTS_BX, SLOTS_BX + 2)), torch.zeros((2, 11), dtype=torch.int64), 43, torch.arange(2)
)


@pytest.mark.parametrize("columns", [slice(1, 2), slice(0, 2), slice(None)])
def test_what_a_kernel_reads_lies_row_by_row(columns: slice) -> None:
    inp = SPANS.input(columns)
    for found, whole in ((inp.positions_T, SLOTS_BX + 1), (inp.slots_T, SLOTS_BX), (inp.seq_lens_B, SLOTS_BX + 2)):
        assert found.is_contiguous() and found.tolist() == whole[:, columns].flatten().tolist()


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_chain_has_the_columns_step_by_step(num_steps: int) -> None:
    chain = SPANS.chain(num_steps)
    assert all(tensor.is_contiguous() for tensor in chain.tensors)
    assert chain.in_one_call.num_decodes == 2 * num_steps
    assert chain.in_one_call.slots_T.tolist() == SLOTS_BX[:, :num_steps].t().flatten().tolist()
    for step in range(num_steps):
        ids_B = torch.tensor([5, 6])
        found, expected = chain.step(step, ids_B), SPANS.input(slice(step, step + 1))
        assert found.input_ids_T is ids_B
        for name in ("positions_T", "slots_T", "seq_lens_B", "page_table_BP", "logit_indices_L"):
            assert torch.equal(getattr(found, name), getattr(expected, name))
        assert (found.num_decodes, found.max_decode_seq_len) == (expected.num_decodes, expected.max_decode_seq_len)
