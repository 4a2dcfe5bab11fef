"""Kernels read the lengths of a launch one after the other, whatever columns they were cut from."""

import random

import numpy as np
import pytest
import torch

from protocol.messages_gateway import SamplingParams
from scheduler.execution.batches import ScheduleBatch
from scheduler.execution.page_table import PageTable
from scheduler.execution.spans import Spans
from scheduler.plan import Draw, Grant, Join

SLOTS_BX = torch.tensor([[8, 9, 10], [40, 41, 42]])
TABLE_BP = torch.zeros((2, 11), dtype=torch.int64)
SPANS = Spans(
    torch.stack((SLOTS_BX + 1, SLOTS_BX, SLOTS_BX + 2, SLOTS_BX + 2)),
    TABLE_BP,
    43,
    torch.arange(2),
    SLOTS_BX.numpy() + 2,
    TABLE_BP.repeat_interleave(3, 0),
    torch.arange(6),
)


@pytest.mark.parametrize("columns", [slice(1, 2), slice(0, 2), slice(None), None])
def test_what_a_kernel_reads_lies_row_by_row(columns: slice | None) -> None:
    inp, chosen = SPANS.input(columns), slice(None) if columns is None else columns
    for read, whole in ((inp.positions_T, SLOTS_BX + 1), (inp.slots_T, SLOTS_BX), (inp.seq_lens_B, SLOTS_BX + 2)):
        assert read.is_contiguous() and read.tolist() == whole[:, chosen].flatten().tolist()


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_chain_has_the_columns_step_by_step(num_steps: int) -> None:
    chain = SPANS.chain(num_steps)
    assert all(tensor.is_contiguous() for tensor in chain.tensors)
    assert chain.in_one_call.num_decodes == 2 * num_steps
    assert chain.in_one_call.slots_T.tolist() == SLOTS_BX[:, :num_steps].t().flatten().tolist()
    for step in range(num_steps):
        ids_B = torch.tensor([5, 6])
        inp, expected = chain.step(step, ids_B), SPANS.input(slice(step, step + 1))
        assert inp.input_ids_T is ids_B
        for name in ("positions_T", "slots_T", "seq_lens_B", "page_table_BP", "logit_indices_L"):
            assert torch.equal(getattr(inp, name), getattr(expected, name))
        assert (inp.num_decodes, inp.max_decode_seq_len) == (expected.num_decodes, expected.max_decode_seq_len)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_positions_stay_within_rows_and_slots_beyond_a_limit_are_in_page_0(page_size: int) -> None:
    chance = random.Random(page_size)
    for _ in range(40):
        limits = [chance.randint(1, 60) for _ in range(chance.randint(0, 4))]
        joins = [
            Join(Draw(row, row, 0, SamplingParams(max_tokens=1), 0, limit=limit), chance.randint(1, limit), 5)
            for row, limit in enumerate(limits, 1)
        ]
        running, table = ScheduleBatch.of(joins, torch.device("cpu")), PageTable(6, 60, torch.device("cpu"))
        table.req_to_page_cpu[1:] = np.arange(1, 301).reshape(5, 60)
        table.req_to_page.copy_(torch.from_numpy(table.req_to_page_cpu))
        ahead, width = chance.choice((0, 0, 2)), chance.randint(1, 7)
        spans = Spans.of(running, table, page_size, running.seq_lens_cpu - ahead, width)
        inp, after = spans.input(), spans.after_T.tolist()
        assert after == spans.after_cpu.flatten().tolist() and len(after) == len(joins) * width
        for index, length in enumerate(after):
            join = joins[index // width]
            assert length == join.seq_len - ahead + index % width + 1
            position = min(max(length - 1, 0), join.draw.limit - 1)
            page = table.req_to_page_cpu[join.draw.row, position // page_size]
            slot = page * page_size + position % page_size if length <= join.draw.limit else 0
            assert (int(inp.positions_T[index]), int(inp.slots_T[index])) == (position, slot)
            assert int(inp.seq_lens_B[index]) == position + 1 <= inp.max_decode_seq_len
            assert inp.page_table_BP[index].tolist() == spans.table_BP[index // width].tolist()
        assert inp.logit_indices_L.tolist() == list(range(len(after)))


def test_the_tables_of_tokens_are_made_again_only_with_those_of_rows() -> None:
    joins = [Join(Draw(row, row, 0, SamplingParams(max_tokens=1), 0, limit=60), 3, 5) for row in (1, 2)]
    running, table = ScheduleBatch.of(joins, torch.device("cpu")), PageTable(4, 8, torch.device("cpu"))
    table.write(Grant(1, 1, 0, (7,)), Grant(2, 2, 0, (8,)))
    first, indices = running.of_tokens(table, 1, 3)
    assert first.tolist() == [[7]] * 3 + [[8]] * 3 and indices.tolist() == list(range(6))
    assert running.of_tokens(table, 1, 3)[0] is first
    assert running.of_tokens(table, 1, 2)[0].tolist() == [[7]] * 2 + [[8]] * 2
    table.write(Grant(2, 2, 1, (9,)))
    assert running.of_tokens(table, 2, 2)[0].tolist() == [[7, 0]] * 2 + [[8, 9]] * 2
    running.filter([1])
    assert running.of_tokens(table, 2, 2)[0].tolist() == [[8, 9]] * 2
