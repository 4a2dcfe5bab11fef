"""What one launch runs on: every tensor it needs, materialised once on the scheduler thread.

A launch reads and writes its ForwardBatch, the KV memory and the FutureMap; it never touches the ScheduleBatch, which
may have moved on by the time it runs. What it does not know: when it runs, or what becomes of the tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.inputs import ModelInput
from model.sampler import SamplingInput
from scheduler.req import Req
from scheduler.row_pool import RowPool
from scheduler.sampling_columns import SamplingColumns, SamplingFlags
from scheduler.schedule_batch import ScheduleBatch


@dataclass(frozen=True)
class ExtendChunk:
    """Prompt tokens [start, end) of `req`. `samples` are the choices whose first token is drawn at its end: none for a
    middle chunk, `n` for the last chunk of a prompt with n choices."""

    req: Req
    start: int
    end: int
    samples: tuple[Req, ...] = ()


@dataclass(frozen=True)
class LaunchPlan:
    """What the next launch runs: chunks of prompts, and the running batch or None.

    With `relay` the sampled tokens are stashed for the next launch, because their requests go on decoding here. With
    `ships` the loop is told of every layer as soon as its KV is written, because KV leaves from here.
    """

    chunks: tuple[ExtendChunk, ...]
    running: ScheduleBatch | None
    relay: bool = True
    ships: bool = False

    @property
    def reqs(self) -> list[Req]:
        """Everybody whom the launch concerns; the running batch as it is now."""
        prompts = [req for chunk in self.chunks for req in (chunk.req, *chunk.samples)]
        return prompts if self.running is None else prompts + self.running.reqs


@dataclass(frozen=True)
class ForwardBatch:
    """One launch. `samples[i]` is the choice that the i-th sampled token belongs to."""

    input: ModelInput  # its input ids may hold sentinels
    has_sentinels: bool
    sampling: SamplingInput | None  # None when nothing is sampled
    samples: tuple[Req, ...]
    stash_rows_L: Tensor  # rows to stash the sampled tokens at; empty without relay
    stash_generations: tuple[int, ...]
    decode_generations: tuple[int, ...]  # owners of the rows of the decodes

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that the forward reads, made on the schedule stream."""
        inp, sampling = self.input, self.sampling
        found = (inp.input_ids_T, inp.positions_T, inp.slots_T, inp.page_table_BP, inp.seq_lens_B, inp.logit_indices_L)
        return (*found, self.stash_rows_L, *(() if sampling is None else sampling.tensors))

    @staticmethod
    def init_new(plan: LaunchPlan, rows: RowPool, page_size: int, device: torch.device) -> "ForwardBatch":
        """The only place where the inputs of a launch are built. `plan.running` has been advanced already."""
        chunks, running = plan.chunks, plan.running
        extends = _ExtendInputs.of(chunks, page_size, device)
        num_decodes = 0 if running is None else len(running)
        max_extend = max((chunk.end for chunk in chunks), default=0)
        max_decode = int(running.seq_lens_cpu.max()) if running is not None and num_decodes else 0
        num_pages = -(-max(max_extend, max_decode) // page_size)

        rows_B, seq_lens_B = extends.rows_E, extends.seq_lens_E
        if running is not None:
            rows_B = torch.cat((rows_B, running.rows_B))
            seq_lens_B = torch.cat((seq_lens_B, running.seq_lens_B))
        page_table_BP = rows.req_to_page[:, :num_pages].index_select(0, rows_B)

        input_ids_T, positions_T, slots_T = extends.input_ids_T, extends.positions_T, extends.slots_T
        logit_indices_L = extends.logit_indices_L
        if running is not None:
            last_D = running.seq_lens_B - 1
            page_D = page_table_BP[len(chunks) :].gather(1, (last_D // page_size)[:, None])[:, 0]
            num_extend = input_ids_T.shape[0]
            input_ids_T = torch.cat((input_ids_T, running.input_ids_B))
            positions_T = torch.cat((positions_T, last_D))
            slots_T = torch.cat((slots_T, page_D * page_size + last_D % page_size))
            decode_logits_D = torch.arange(num_extend, num_extend + num_decodes, device=device)
            logit_indices_L = torch.cat((logit_indices_L, decode_logits_D))

        samples = tuple(req for chunk in chunks for req in chunk.samples)
        sampling = _sampling(chunks, samples, running, device)
        if running is not None:
            samples += tuple(running.reqs)
        stash_rows_L = torch.empty(0, dtype=torch.int64, device=device)
        if plan.relay and samples:
            stash_rows_L = torch.tensor([req.row for req in samples], dtype=torch.int64).to(device, non_blocking=True)
        return ForwardBatch(
            input=ModelInput(
                input_ids_T=input_ids_T,
                positions_T=positions_T,
                slots_T=slots_T,
                page_table_BP=page_table_BP,
                seq_lens_B=seq_lens_B,
                extend_lens=tuple(chunk.end - chunk.start for chunk in chunks),
                extend_seq_lens=tuple(chunk.end for chunk in chunks),
                num_decodes=num_decodes,
                max_decode_seq_len=max_decode,
                logit_indices_L=logit_indices_L,
            ),
            has_sentinels=num_decodes > 0,
            sampling=sampling,
            samples=samples,
            stash_rows_L=stash_rows_L,
            stash_generations=tuple(req.row_generation for req in samples) if plan.relay else (),
            decode_generations=() if running is None else tuple(req.row_generation for req in running.reqs),
        )


@dataclass(frozen=True)
class _ExtendInputs:
    rows_E: Tensor
    seq_lens_E: Tensor
    input_ids_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    logit_indices_L: Tensor

    @staticmethod
    def of(chunks: Sequence[ExtendChunk], page_size: int, device: torch.device) -> "_ExtendInputs":
        ids: list[int] = []
        positions: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        slots: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        logits: list[int] = []
        for chunk in chunks:
            ids.extend(chunk.req.prompt_ids[chunk.start : chunk.end])
            position = np.arange(chunk.start, chunk.end, dtype=np.int64)
            pages = np.asarray(chunk.req.pages, dtype=np.int64)
            positions.append(position)
            slots.append(pages[position // page_size] * page_size + position % page_size)
            logits.extend([len(ids) - 1] * len(chunk.samples))

        def column(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)

        def joined(arrays: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> Tensor:
            whole = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
            return torch.from_numpy(whole).to(device, non_blocking=True)

        return _ExtendInputs(
            rows_E=column([chunk.req.row for chunk in chunks]),
            seq_lens_E=column([chunk.end for chunk in chunks]),
            input_ids_T=column(ids),
            positions_T=joined(positions),
            slots_T=joined(slots),
            logit_indices_L=column(logits),
        )


def _sampling(
    chunks: Sequence[ExtendChunk], firsts: Sequence[Req], running: ScheduleBatch | None, device: torch.device
) -> SamplingInput | None:
    """Sampling parameters of the first tokens, then of the running batch. A token's position is the context length."""
    if not firsts:
        if running is None or not len(running):
            return None
        return running.sampling.input(running.reqs, running.flags, running.seq_lens_B)
    columns = SamplingColumns.of(firsts, device)
    ends = [chunk.end for chunk in chunks for _ in chunk.samples]
    position_L = torch.tensor(ends, dtype=torch.int64).to(device, non_blocking=True)
    if running is None:
        return columns.input(firsts, SamplingFlags.of(firsts), position_L)
    reqs = [*firsts, *running.reqs]
    position_L = torch.cat((position_L, running.seq_lens_B))
    return columns.concat(running.sampling).input(reqs, SamplingFlags.of(reqs), position_L)
