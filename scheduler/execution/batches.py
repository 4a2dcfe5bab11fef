"""The rows that decode together (ScheduleBatch), and the inputs of one launch (ForwardBatch).

The tensors of a ScheduleBatch are kept from step to step. `seq_lens_B` on the device and `seq_lens_cpu` on the host are
always equal: every method changes both or neither. Methods replace tensors and never write into them, because a launch
in flight may hold the old ones. `Members` and SamplingColumns are rebuilt only when a row joins or leaves; the rows'
page table, also when a longer context or more pages need it.

A ForwardBatch has every tensor that its launch needs, made once on the scheduler thread. A launch uses it, the KV
memory and the FutureMap. It never touches the ScheduleBatch, which may have changed by the time the launch runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.inputs import ModelInput, int64_column
from model.logprobs import PromptRows
from model.sampling_input import SamplingInput
from protocol.kv_layout import pages_for
from protocol.logprobs import LogprobsAsked
from protocol.messages_group import StepShape
from scheduler.execution.future_rows import DraftInput, owners_of
from scheduler.execution.page_table import IntArray, PageTable
from scheduler.execution.sampling_columns import SamplingColumns
from scheduler.plan import Chunk, Draw, Join, Owner, Plan


@dataclass(frozen=True)
class Members:
    """Values that depend only on the rows of a batch and their order. Launches share it and never write into it."""

    owners: tuple[Owner, ...]
    owners_B: Tensor  # from owners_of
    rows_cpu: IntArray
    limits_cpu: IntArray  # tokens of KV at most
    limits_B: Tensor
    drafts_B: Tensor | None  # bool: whether a draft may propose for the row; None: for each of them
    any_drafts: bool  # whether it may for one of them
    indices_B: Tensor  # 0, 1, ...
    sentinels_B: Tensor  # minus the rows


@dataclass(eq=False)
class ScheduleBatch:
    """B rows, in the same order in every tensor. B may be 0.

    `seq_lens` counts the tokens whose KV is written by the launches enqueued so far; `positions` is what it was before
    the last advance(). `input_ids_B` holds the next input token of each row. If only a launch in flight knows it, it
    holds minus the row (the sentinel).
    """

    rows_B: Tensor
    seq_lens_B: Tensor
    seq_lens_cpu: IntArray
    positions_B: Tensor
    positions_cpu: IntArray
    longest: int  # the greatest of seq_lens; 0 without rows
    input_ids_B: Tensor
    sampling: SamplingColumns
    spec_info: DraftInput | None = None  # None: without speculation
    _members: Members | None = None
    _pages: tuple[Tensor, int] | None = None  # (B, P) of the page table, and its num_growths when it was copied
    _repeated: dict[int, SamplingColumns] | None = None  # its columns, each row so many times
    _of_tokens: tuple[Tensor, Tensor, Tensor] | None = None  # what of_tokens has given last, and the table of its rows

    @staticmethod
    def of(joins: Sequence[Join], device: torch.device, *, speculates: bool = False) -> "ScheduleBatch":
        """A batch of the rows that join."""
        draws, seq_lens = [join.draw for join in joins], [join.seq_len for join in joins]
        input_ids = [-join.draw.row if join.input_id is None else join.input_id for join in joins]
        seq_lens_B, seq_lens_cpu = int64_column(seq_lens, device), np.array(seq_lens, dtype=np.int64)
        rows_B = int64_column([draw.row for draw in draws], device)
        return ScheduleBatch(
            rows_B=rows_B,
            seq_lens_B=seq_lens_B,
            seq_lens_cpu=seq_lens_cpu,
            positions_B=seq_lens_B,
            positions_cpu=seq_lens_cpu,
            longest=max(seq_lens, default=0),
            input_ids_B=int64_column(input_ids, device),
            sampling=SamplingColumns.of(draws, device),
            spec_info=DraftInput.joining(joins, rows_B) if speculates else None,
        )

    @property
    def draws(self) -> Sequence[Draw]:
        """The Draw of each row, in the order of the rows."""
        return self.sampling.draws

    def __len__(self) -> int:
        return len(self.sampling.draws)

    def change(self, leaves: Sequence[int], joins: Sequence[Join]) -> None:
        """Removes the rows `leaves`, then appends those that join."""
        if leaves:
            leaving = set(leaves)
            self.filter([index for index, draw in enumerate(self.draws) if draw.row not in leaving])
        if joins:
            self.merge(ScheduleBatch.of(joins, self.rows_B.device, speculates=self.spec_info is not None))

    def advance(self) -> None:
        """Counts one more token per row. The launch being built writes its KV.

        With speculation the host may not know yet that a row has drawn its last token. Its length stays.
        """
        self.positions_B, self.positions_cpu = self.seq_lens_B, self.seq_lens_cpu
        self.seq_lens_B = self.seq_lens_B + 1
        self.seq_lens_cpu = self.seq_lens_cpu + 1
        self.longest += bool(self.draws)
        if self.spec_info is not None and self.draws:
            members = self.members
            self.seq_lens_B = torch.minimum(self.seq_lens_B, members.limits_B)
            self.seq_lens_cpu = np.minimum(self.seq_lens_cpu, members.limits_cpu)
            self.longest = max(self.seq_lens_cpu.tolist())

    def forget_drafts(self) -> None:
        """No row has KV of a draft from now on."""
        if self.members.any_drafts:
            self._members = self._repeated = None
            self.sampling = replace(self.sampling, draws=[replace(draw, drafts=False) for draw in self.draws])

    def set_input_ids_sentinel(self) -> None:
        """Makes the sentinels the next inputs: the launch that was just enqueued stashes the tokens."""
        if self.draws:
            self.input_ids_B = self.members.sentinels_B

    def set_seq_lens(self, seq_lens_B: Tensor, seq_lens: list[int]) -> None:
        """Replaces the lengths: the same ones, on the device and on the host."""
        self.seq_lens_B, self.seq_lens_cpu = seq_lens_B, np.array(seq_lens, dtype=np.int64)
        self.longest = max(seq_lens, default=0)

    @property
    def members(self) -> Members:
        """Its Members, made when they are first asked for."""
        if self._members is None:
            limits_cpu = np.array([draw.limit for draw in self.draws], dtype=np.int64)
            drafts_B = None
            drafts = [draw.drafts for draw in self.draws]
            if not all(drafts):
                drafts_cpu = np.array(drafts, dtype=np.bool_)
                drafts_B = torch.from_numpy(drafts_cpu).to(self.rows_B.device, non_blocking=True)
            self._members = Members(
                owners=tuple([(draw.row, draw.owner_number) for draw in self.draws]),
                owners_B=owners_of(self.draws, self.rows_B.device),
                rows_cpu=np.array([draw.row for draw in self.draws], dtype=np.int64),
                limits_cpu=limits_cpu,
                limits_B=torch.from_numpy(limits_cpu).to(self.rows_B.device, non_blocking=True),
                drafts_B=drafts_B,
                any_drafts=any(drafts),
                indices_B=torch.arange(len(self.draws), device=self.rows_B.device),
                sentinels_B=-self.rows_B,
            )
        return self._members

    def repeated(self, times: int) -> SamplingColumns:
        """Its columns, each row `times` times in a row."""
        if self._repeated is None:
            self._repeated = {}
        if times not in self._repeated:
            self._repeated[times] = self.sampling.take([row for row in range(len(self)) for _ in range(times)])
        return self._repeated[times]

    def page_table(self, table: PageTable, num_pages: int) -> Tensor:
        """(B, P) page numbers of its rows: P is at least `num_pages`, and no page added since is missing."""
        if self._pages is None or self._pages[0].shape[1] < num_pages or self._pages[1] != table.num_growths:
            rows_BP = table.req_to_page[:, :num_pages].index_select(0, self.rows_B)
            self._pages = rows_BP, table.num_growths
        return self._pages[0]

    def of_tokens(self, table: PageTable, num_pages: int, times: int) -> tuple[Tensor, Tensor]:
        """Of `times` tokens of each row: (B * times, P) page numbers as `page_table` has them, and 0, 1, ..."""
        rows_BP = self.page_table(table, num_pages)
        if times == 1:
            return rows_BP, self.members.indices_B
        known, num_tokens = self._of_tokens, len(self) * times
        if known is None or known[0] is not rows_BP or len(known[1]) != num_tokens:
            indices_T = torch.arange(num_tokens, device=rows_BP.device)
            known = self._of_tokens = rows_BP, rows_BP.repeat_interleave(times, 0), indices_T
        return known[1:]

    def filter(self, keep: Sequence[int]) -> None:
        """Keeps the rows at the indices `keep`, in that order."""
        keep_N = int64_column(keep, self.rows_B.device)
        self._members = self._pages = self._repeated = self._of_tokens = None
        self.rows_B = self.rows_B.index_select(0, keep_N)
        self.seq_lens_B = self.seq_lens_B.index_select(0, keep_N)
        self.seq_lens_cpu = self.seq_lens_cpu[np.asarray(keep, dtype=np.int64)]
        self.longest = max(self.seq_lens_cpu.tolist(), default=0)  # numpy's own maximum takes ten times as long
        self.input_ids_B = self.input_ids_B.index_select(0, keep_N)
        self.sampling = self.sampling.take(keep)
        if self.spec_info is not None:
            self.spec_info = self.spec_info.take(keep, keep_N)

    def merge(self, other: "ScheduleBatch") -> None:
        """Appends the rows of `other`, which is not used afterwards."""
        self._members = self._pages = self._repeated = self._of_tokens = None
        self.rows_B = torch.cat((self.rows_B, other.rows_B))
        self.seq_lens_B = torch.cat((self.seq_lens_B, other.seq_lens_B))
        self.seq_lens_cpu = np.concatenate((self.seq_lens_cpu, other.seq_lens_cpu))
        self.longest = max(self.longest, other.longest)
        self.input_ids_B = torch.cat((self.input_ids_B, other.input_ids_B))
        self.sampling = self.sampling.concat(other.sampling)
        if self.spec_info is not None and other.spec_info is not None:
            self.spec_info = self.spec_info.concat(other.spec_info)

    def check_mirrors(self) -> None:
        """Asserts that device and host agree. It reads the device, so it is only for tests and debug mode."""
        assert len(self.draws) == len(self.rows_B) == len(self.seq_lens_B) == len(self.input_ids_B)
        assert self.seq_lens_B.tolist() == self.seq_lens_cpu.tolist()
        assert self.rows_B.tolist() == [draw.row for draw in self.draws]
        assert self.longest == max(self.seq_lens_cpu.tolist(), default=0)
        if self.spec_info is not None:
            assert self.spec_info.future_indices_B.tolist() == self.rows_B.tolist()
            assert len(self.spec_info.pending) == len(self)


class Relay(NamedTuple):
    """The places in the FutureMap at which a launch stashes its tokens. A launch without relay has none."""

    rows_L: Tensor
    owners_L: Tensor  # see owners_of
    seq_lens_L: Tensor  # tokens of KV with the prompts of this launch, but without what it decodes

    @staticmethod
    def of(plan: Plan, running: ScheduleBatch) -> "Relay":
        """The rows of the choices that the plan draws: those of its chunks, then those that decode."""
        if not plan.relay:  # only the first of the choices may hold a row
            nothing = int64_column([], running.rows_B.device)
            return Relay(nothing, nothing, nothing)
        if not plan.chunks:
            return Relay(running.rows_B, running.members.owners_B, running.seq_lens_B)
        device, draws = running.rows_B.device, draws_of(plan.chunks)
        ends = [chunk.end for chunk in plan.chunks for _ in chunk.draws]
        return Relay(
            torch.cat((int64_column([draw.row for draw in draws], device), running.rows_B)),
            torch.cat((owners_of(draws, device), running.members.owners_B)),
            torch.cat((int64_column(ends, device), running.seq_lens_B)),
        )


@dataclass(frozen=True)
class ForwardBatch:
    """One launch of D decodes. Its input ids may hold sentinels."""

    input: ModelInput
    sampling: SamplingInput
    decode_owners_D: Tensor  # see owners_of
    step: StepShape | None = None  # of all ranks, for launches with a draft
    seeds_3S: Tensor | None = None  # see seeds_of
    scored: PromptRows | None = None  # None: no tokens of prompts are scored

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that the forward reads. They were made on the schedule stream."""
        seeds = () if self.seeds_3S is None else (self.seeds_3S,)
        scored = () if self.scored is None else (self.scored.rows_S, self.scored.next_S)
        return (*self.input.tensors.values(), self.decode_owners_D, *self.sampling.tensors, *seeds, *scored)

    @staticmethod
    def init_new(chunks: Sequence[Chunk], running: ScheduleBatch, table: PageTable, page_size: int) -> "ForwardBatch":
        """Builds the inputs of a launch. The caller has advanced `running`."""
        inputs: list[ModelInput] = []
        has_decodes = len(running) > 0
        if chunks or not has_decodes:
            inputs.append(extend_input(chunks, table, page_size, running.rows_B.device))
        if has_decodes:
            inputs.append(_decode_input(running, table, page_size))
        return ForwardBatch(
            input=inputs[0] if len(inputs) == 1 else joined(*inputs),
            sampling=sampling_of(chunks, running.sampling, running.seq_lens_B, running.seq_lens_cpu),
            decode_owners_D=running.members.owners_B,
        )


def owners_drawn(plan: Plan, running: ScheduleBatch) -> tuple[Owner, ...]:
    """The owners of the rows that a launch draws tokens for: those of its chunks, then those that decode."""
    owners = running.members.owners
    if not plan.chunks:
        return owners
    return (*((draw.row, draw.owner_number) for draw in draws_of(plan.chunks)), *owners)


def asked_of(plan: Plan, running: ScheduleBatch) -> tuple[LogprobsAsked | None, ...]:
    """What each of these owners asks for. Empty: nobody asks."""
    firsts = draws_of(plan.chunks) if plan.chunks else []
    if not running.sampling.asks_logprobs and all(draw.sampling.logprobs is None for draw in firsts):
        return ()
    return tuple([draw.sampling.logprobs for draw in (*firsts, *running.draws)])


def draws_of(chunks: Sequence[Chunk]) -> list[Draw]:
    """The choices whose first token is drawn at the end of a chunk."""
    return [draw for chunk in chunks for draw in chunk.draws]


def extend_input(chunks: Sequence[Chunk], table: PageTable, page_size: int, device: torch.device) -> ModelInput:
    """Chunks of prompts, one after the other."""
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

    Slots are computed on the host, which knows lengths and pages. A row that is at its end (see advance) writes page 0.
    """
    positions, is_over = running.positions_cpu, None
    if running.spec_info is not None:
        limits = running.members.limits_cpu
        positions, is_over = np.minimum(positions, limits - 1), positions >= limits
    page, offset = np.divmod(positions, page_size)
    slots = table.req_to_page_cpu[running.members.rows_cpu, page] * page_size + offset
    if is_over is not None:
        slots[is_over] = 0
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


def joined(extends: ModelInput, decodes: ModelInput) -> ModelInput:
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
        tree_starts_D=decodes.tree_starts_D,
        tree_bits_D=decodes.tree_bits_D,
    )


def sampling_of(
    chunks: Sequence[Chunk], columns: SamplingColumns, seq_lens_B: Tensor, seq_lens: IntArray
) -> SamplingInput:
    """Sampling parameters of the first tokens, then of the rows that decode, by the lengths of their contexts."""
    firsts = draws_of(chunks)
    if not firsts:
        return columns.input(seq_lens_B, seq_lens)

    device = seq_lens_B.device
    ends = [chunk.end for chunk in chunks for _ in chunk.draws]
    seq_lens_L = torch.cat((int64_column(ends, device), seq_lens_B))
    columns = SamplingColumns.of(firsts, device).concat(columns)
    return columns.input(seq_lens_L, np.concatenate((np.array(ends, dtype=np.int64), seq_lens)))
