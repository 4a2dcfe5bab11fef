"""The inputs of one launch: every tensor it needs, made once on the scheduler thread.

A launch uses its ForwardBatch, the KV memory and the FutureMap. It never touches the ScheduleBatch, which may have
changed by the time the launch runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.inputs import ModelInput, int64_column
from model.sampler import SamplingInput
from protocol.kv_layout import pages_for
from scheduler.page_table import PageTable, owners_of
from scheduler.req import Req
from scheduler.sampling_columns import SamplingColumns
from scheduler.schedule_batch import IntArray, Members, ScheduleBatch


@dataclass(frozen=True)
class ExtendChunk:
    """Prompt tokens [start, end) of `req`. `samples` are the choices whose first token is drawn at its end.

    A middle chunk has none; the last chunk of a prompt with n choices has n. `to_host`: the KV that it writes is needed
    in host memory, because a transport reads it there. Only a launch that `ships` copies it.
    """

    req: Req
    start: int
    end: int
    samples: tuple[Req, ...] = ()
    to_host: bool = False


@dataclass(frozen=True)
class LaunchPlan:
    """What the next launch runs: chunks of prompts, and the running batch or None.

    `relay`: sampled tokens are stashed for the next launch, because their requests go on decoding on this worker.
    `ships`: the engine reports each layer as soon as its KV is written, because this worker sends KV.
    """

    chunks: tuple[ExtendChunk, ...]
    running: ScheduleBatch | None
    relay: bool = True
    ships: bool = False

    @property
    def reqs(self) -> list[Req]:
        """All requests of the launch; those of the running batch as it is now."""
        prompts = [req for chunk in self.chunks for req in (chunk.req, *chunk.samples)]
        return prompts if self.running is None else prompts + self.running.reqs


def plan_chunks(remaining: Sequence[int], chunk_size: int, taken: int = 0) -> list[int]:
    """How many tokens of each prompt to compute. `remaining[i]` tokens are left of prompt i; prompts are oldest first.

    `chunk_size` bounds the tokens of one launch, and decodes take `taken` of them. 0 means whole prompts, one at a
    time. A launch computes at least one token of the oldest prompt.
    """
    if chunk_size == 0:
        return [remaining[0]] + [0] * (len(remaining) - 1) if remaining else []
    budget = max(chunk_size - taken, 1)
    planned: list[int] = []
    for left in remaining:
        take = min(left, budget)
        planned.append(take)
        budget -= take
    return planned


@dataclass(frozen=True)
class ForwardBatch:
    """One launch. `samples[i]` is the choice that the i-th sampled token belongs to."""

    input: ModelInput  # its input ids may hold sentinels
    has_sentinels: bool
    sampling: SamplingInput | None  # None when nothing is sampled
    samples: tuple[Req, ...]
    stash_rows_L: Tensor  # rows to stash the sampled tokens at; empty without relay
    stash_owners_L: Tensor  # of those rows; see page_table.owners_of
    decode_owners_B: Tensor  # of the rows of the decodes

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that the forward reads. They were made on the schedule stream."""
        relay = (self.stash_rows_L, self.stash_owners_L, self.decode_owners_B)
        sampling = () if self.sampling is None else self.sampling.tensors
        return (*self.input.tensors.values(), *relay, *sampling)

    @staticmethod
    def init_new(plan: LaunchPlan, table: PageTable, page_size: int, device: torch.device) -> "ForwardBatch":
        """Builds the inputs of a launch. The caller has advanced `plan.running`."""
        chunks, running = plan.chunks, plan.running
        samples = tuple(req for chunk in chunks for req in chunk.samples)
        sampling = _sampling(chunks, samples, running, device)
        inputs: list[ModelInput] = []
        stash_rows: list[Tensor] = []
        stash_owners: list[Tensor] = []

        if chunks:
            inputs.append(_extend_input(chunks, table, page_size, device))
            if plan.relay:  # else only the first of the choices may hold a row
                stash_rows.append(int64_column([req.held.row for req in samples], device))
                stash_owners.append(owners_of(samples, device))

        if running is not None:
            longest = max(running.seq_lens_cpu.tolist())  # numpy's own maximum takes ten times as long
            members = running.members(table, pages_for(longest, page_size))
            inputs.append(_decode_input(running, members, longest, table, page_size, device))
            stash_rows.append(running.rows_B)
            stash_owners.append(members.owners_B)
            samples += members.reqs

        decode_owners_B = int64_column([], device) if running is None else members.owners_B
        if not plan.relay:
            stash_rows, stash_owners = [int64_column([], device)], [int64_column([], device)]
        return ForwardBatch(
            input=inputs[0] if len(inputs) == 1 else _joined(*inputs),
            has_sentinels=running is not None,
            sampling=sampling,
            samples=samples,
            stash_rows_L=stash_rows[0] if len(stash_rows) == 1 else torch.cat(stash_rows),
            stash_owners_L=stash_owners[0] if len(stash_owners) == 1 else torch.cat(stash_owners),
            decode_owners_B=decode_owners_B,
        )


def _extend_input(chunks: Sequence[ExtendChunk], table: PageTable, page_size: int, device: torch.device) -> ModelInput:
    ids: list[int] = []
    positions: list[IntArray] = []
    slots: list[IntArray] = []
    logits: list[int] = []

    for chunk in chunks:
        ids.extend(chunk.req.prompt_ids[chunk.start : chunk.end])
        position = np.arange(chunk.start, chunk.end, dtype=np.int64)
        pages = np.asarray(chunk.req.held.pages, dtype=np.int64)
        positions.append(position)
        slots.append(pages[position // page_size] * page_size + position % page_size)
        logits.extend([len(ids) - 1] * len(chunk.samples))

    def joined(arrays: list[IntArray]) -> Tensor:
        whole = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
        return torch.from_numpy(whole).to(device, non_blocking=True)

    seq_lens = tuple(chunk.end for chunk in chunks)
    num_pages = pages_for(max(seq_lens, default=0), page_size)
    rows_E = int64_column([chunk.req.held.row for chunk in chunks], device)
    return ModelInput(
        input_ids_T=int64_column(ids, device),
        positions_T=joined(positions),
        slots_T=joined(slots),
        page_table_BP=table.req_to_page[:, :num_pages].index_select(0, rows_E),
        seq_lens_B=int64_column(seq_lens, device),
        extend_lens=tuple(chunk.end - chunk.start for chunk in chunks),
        extend_seq_lens=seq_lens,
        num_decodes=0,
        max_decode_seq_len=0,
        logit_indices_L=int64_column(logits, device),
    )


def _decode_input(
    running: ScheduleBatch, members: Members, longest: int, table: PageTable, page_size: int, device: torch.device
) -> ModelInput:
    """One token for each request: the last of its context, whose KV this launch writes.

    Slots are computed on the host, which knows lengths and pages.
    """
    page, offset = np.divmod(running.seq_lens_cpu - 1, page_size)
    slots = table.req_to_page_cpu[members.rows_cpu, page] * page_size + offset
    return ModelInput(
        input_ids_T=running.input_ids_B,
        positions_T=running.seq_lens_B - 1,
        slots_T=torch.from_numpy(slots).to(device, non_blocking=True),
        page_table_BP=members.page_table_BP,
        seq_lens_B=running.seq_lens_B,
        extend_lens=(),
        extend_seq_lens=(),
        num_decodes=len(members.reqs),
        max_decode_seq_len=longest,
        logit_indices_L=members.indices_B,
    )


def _joined(extends: ModelInput, decodes: ModelInput) -> ModelInput:
    """Joins prompt chunks and decodes into one forward. The narrower page table is padded with page 0."""
    width = max(extends.page_table_BP.shape[1], decodes.page_table_BP.shape[1])
    extends, decodes = (
        replace(each, page_table_BP=F.pad(each.page_table_BP, (0, width - each.page_table_BP.shape[1])))
        for each in (extends, decodes)
    )
    decodes = replace(decodes, logit_indices_L=decodes.logit_indices_L + extends.input_ids_T.shape[0])
    seconds = decodes.tensors
    tensors: dict[str, Any] = {name: torch.cat((first, seconds[name])) for name, first in extends.tensors.items()}
    return replace(decodes, extend_lens=extends.extend_lens, extend_seq_lens=extends.extend_seq_lens, **tensors)


def _sampling(
    chunks: Sequence[ExtendChunk], firsts: Sequence[Req], running: ScheduleBatch | None, device: torch.device
) -> SamplingInput | None:
    """Sampling parameters of the first tokens, then of the running batch. A token's position is the context length."""
    if not firsts:
        if running is None or not len(running):
            return None
        return running.sampling.input(running.reqs, running.seq_lens_B)

    columns = SamplingColumns.of(firsts, device)
    ends = [chunk.end for chunk in chunks for _ in chunk.samples]
    position_L = int64_column(ends, device)
    if running is None:
        return columns.input(firsts, position_L)

    reqs = [*firsts, *running.reqs]
    position_L = torch.cat((position_L, running.seq_lens_B))
    return columns.concat(running.sampling, reqs).input(reqs, position_L)
