"""Kernels read the lengths of a launch one after the other, whatever columns they were cut from."""

import pytest
import torch

from scheduler.execution.spans import Spans


@pytest.mark.parametrize("columns", [slice(1, 2), slice(0, 2), slice(None)])
def test_what_a_kernel_reads_lies_row_by_row(columns: slice) -> None:
    slots_BX = torch.tensor([[8, 9, 10], [40, 41, 42]])
    spans = Spans(slots_BX + 1, slots_BX, slots_BX + 2, torch.zeros((2, 11), dtype=torch.int64), 43)
    inp = spans.input(columns)
    for found, whole in ((inp.positions_T, slots_BX + 1), (inp.slots_T, slots_BX), (inp.seq_lens_B, slots_BX + 2)):
        assert found.is_contiguous() and found.tolist() == whole[:, columns].flatten().tolist()
