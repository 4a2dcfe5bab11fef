"""The inputs of one launch: every tensor it needs, made once on the scheduler thread.

A launch uses its ForwardBatch, the KV memory and the FutureMap. It never touches the ScheduleBatch, which may have
changed by the time the launch runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.inputs import ModelInput, int64_column
from model.sampler import SamplingInput
from protocol.kv_layout import pages_for
from scheduler.page_table import IntArray, PageTable, owners_of
from scheduler.plan import Chunk, Draw, Plan
from scheduler.sampling_columns import SamplingColumns
from scheduler.schedule_batch import ScheduleBatch


class Relay(NamedTuple):
    """Where sampled tokens are stashed for the next launch. Without relay there are none."""

    rows_L: Tensor
    owners_L: Tensor  # see page_table.owners_of

    @staticmethod
    def of(plan: Plan, running: ScheduleBatch) -> "Relay":
        """The rows of the choices that the plan draws: those of its chunks, then those that decode."""
        device = running.rows_B.device
        if not plan.relay:  # only the first of the choices may hold a row
            return Relay(int64_column([], device), int64_column([], device))
        if not plan.chunks:
            return Relay(running.rows_B, running.members.owners_B)
        draws = draws_of(plan.chunks)
        firsts_N = int64_column([draw.row for draw in draws], device)
        return Relay(
            torch.cat((firsts_N, running.rows_B)), torch.cat((owners_of(draws, device), running.members.owners_B))
        )


@dataclass(frozen=True)
class ForwardBatch:
    """One launch of D decodes. Its input ids may hold sentinels."""

    input: ModelInput
    sampling: SamplingInput
    decode_owners_D: Tensor  # see page_table.owners_of

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that the forward reads. They were made on the schedule stream."""
        return (*self.input.tensors.values(), self.decode_owners_D, *self.sampling.tensors)

    @staticmethod
    def init_new(chunks: Sequence[Chunk], running: ScheduleBatch, table: PageTable, page_size: int) -> "ForwardBatch":
        """Builds the inputs of a launch. The caller has advanced `running`."""
        device = running.rows_B.device
        inputs: list[ModelInput] = []
        if chunks or not len(running):
            inputs.append(_extend_input(chunks, table, page_size, device))
        if len(running):
            inputs.append(_decode_input(running, table, page_size))
        return ForwardBatch(
            input=inputs[0] if len(inputs) == 1 else _joined(*inputs),
            sampling=_sampling(chunks, running),
            decode_owners_D=running.members.owners_B,
        )


def draws_of(chunks: Sequence[Chunk]) -> list[Draw]:
    """The choices whose first token is drawn at the end of a chunk."""
    return [draw for chunk in chunks for draw in chunk.draws]


def _extend_input(chunks: Sequence[Chunk], table: PageTable, page_size: int, device: torch.device) -> ModelInput:
    ids: list[int] = []
    positions: list[IntArray] = []
    slots: list[IntArray] = []
    logits: list[int] = []

    for chunk in chunks:
        ids.extend(chunk.ids)
        position = np.arange(chunk.start, chunk.end, dtype=np.int64)
        pages = table.req_to_page_cpu[chunk.row, position // page_size]
        positions.append(position)
        slots.append(pages * page_size + position % page_size)
        logits.extend([len(ids) - 1] * len(chunk.draws))

    def joined(arrays: list[IntArray]) -> Tensor:
        whole = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
        return torch.from_numpy(whole).to(device, non_blocking=True)

    seq_lens = tuple(chunk.end for chunk in chunks)
    num_pages = pages_for(max(seq_lens, default=0), page_size)
    rows_E = int64_column([chunk.row for chunk in chunks], device)
    return ModelInput(
        input_ids_T=int64_column(ids, device),
        positions_T=joined(positions),
        slots_T=joined(slots),
        page_table_BP=table.req_to_page[:, :num_pages].index_select(0, rows_E),
        seq_lens_B=int64_column(seq_lens, device),
        extend_lens=tuple(len(chunk.ids) for chunk in chunks),
        extend_seq_lens=seq_lens,
        num_decodes=0,
        max_decode_seq_len=0,
        logit_indices_L=int64_column(logits, device),
    )


def _decode_input(running: ScheduleBatch, table: PageTable, page_size: int) -> ModelInput:
    """One token for each row: the last of its context, whose KV this launch writes.

    Slots are computed on the host, which knows lengths and pages.
    """
    page, offset = np.divmod(running.positions_cpu, page_size)
    slots = table.req_to_page_cpu[running.members.rows_cpu, page] * page_size + offset
    return ModelInput(
        input_ids_T=running.input_ids_B,
        positions_T=running.positions_B,
        slots_T=torch.from_numpy(slots).to(running.rows_B.device, non_blocking=True),
        page_table_BP=running.page_table(table, pages_for(running.longest, page_size)),
        seq_lens_B=running.seq_lens_B,
        extend_lens=(),
        extend_seq_lens=(),
        num_decodes=len(running),
        max_decode_seq_len=running.longest,
        logit_indices_L=running.members.indices_B,
    )


def _joined(extends: ModelInput, decodes: ModelInput) -> ModelInput:
    """Joins prompt chunks and decodes into one forward. The narrower page table is padded with page 0."""
    tables = extends.page_table_BP, decodes.page_table_BP
    width = max(table.shape[1] for table in tables)
    return ModelInput(
        input_ids_T=torch.cat((extends.input_ids_T, decodes.input_ids_T)),
        positions_T=torch.cat((extends.positions_T, decodes.positions_T)),
        slots_T=torch.cat((extends.slots_T, decodes.slots_T)),
        page_table_BP=torch.cat([F.pad(table, (0, width - table.shape[1])) for table in tables]),
        seq_lens_B=torch.cat((extends.seq_lens_B, decodes.seq_lens_B)),
        extend_lens=extends.extend_lens,
        extend_seq_lens=extends.extend_seq_lens,
        num_decodes=decodes.num_decodes,
        max_decode_seq_len=decodes.max_decode_seq_len,
        logit_indices_L=torch.cat((extends.logit_indices_L, decodes.logit_indices_L + len(extends.input_ids_T))),
    )


def _sampling(chunks: Sequence[Chunk], running: ScheduleBatch) -> SamplingInput:
    """Sampling parameters of the first tokens, then of the rows that decode, by the lengths of their contexts."""
    firsts = draws_of(chunks)
    if not firsts:
        return running.sampling.input(running.seq_lens_B, running.seq_lens_cpu)

    device = running.rows_B.device
    columns = SamplingColumns.of(firsts, device).concat(running.sampling)
    ends = [chunk.end for chunk in chunks for _ in chunk.draws]
    seq_lens_L = torch.cat((int64_column(ends, device), running.seq_lens_B))
    return columns.input(seq_lens_L, np.concatenate((np.array(ends, dtype=np.int64), running.seq_lens_cpu)))
