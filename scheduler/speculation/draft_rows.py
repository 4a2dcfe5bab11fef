"""The inputs of a launch with a draft that every mode reads: the rows that decode, those that begin, those seeded.

Of a row with m committed tokens and W tokens to verify, the target computes positions m to m + W - 1: the last known
token x_m and the proposals. With W = 1 there are none: it is an ordinary launch, and the draft only writes its KV.
A draft's slot i holds KV of the token x_(i+1) and the target's feature at position i. Positions from the row's limit on
are written to page 0, and what is drawn there is never used.
Shapes: B rows that decode, W width, N rows that begin, T tokens of the target's forward, L rows of its logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

from model.inputs import ModelInput, int64_column
from scheduler.execution.batches import ForwardBatch, ScheduleBatch, draws_of, extend_input, joined, sampling_of
from scheduler.execution.future_rows import owners_of
from scheduler.execution.page_table import PageTable
from scheduler.execution.spans import Spans
from scheduler.plan import Chunk, Join, Plan

BEYOND: Final = -2  # behind the end of a run of tokens


@dataclass(frozen=True)
class DraftRows:
    """What a launch of B rows reads beside its ForwardBatch, whose decodes are B * W, row by row."""

    width: int  # W
    num_draws: int  # first tokens of prompts, which come first in L
    rows_B: Tensor
    owners_B: Tensor  # see owners_of
    ids_B: Tensor  # the last known tokens, or sentinels
    seq_lens_B: Tensor  # committed before the launch
    limits_B: Tensor
    drafts_B: Tensor | None  # bool: False where nothing is ever proposed; None: nowhere
    firsts_B: Tensor  # the first of each row's W decodes
    places_W: Tensor  # 0, 1, ...
    after_T: Tensor  # the token behind each token of a chunk; 0 where it is not known yet
    begin: "Beginning"
    seeds: "Seeds"
    shipped_N: Tensor  # indices into L: one row of each prompt whose first tokens are drawn; if the launch ships

    @staticmethod
    def of(plan: Plan, running: ScheduleBatch, begin: "Beginning") -> "DraftRows":
        """Those of a launch. The lengths of `running` are known."""
        device, chunks, members = running.rows_B.device, plan.chunks, running.members
        return DraftRows(
            width=plan.num_steps + 1,
            num_draws=len(draws_of(chunks)),
            rows_B=running.rows_B,
            owners_B=members.owners_B,
            ids_B=running.input_ids_B,
            seq_lens_B=running.seq_lens_B,
            limits_B=members.limits_B,
            drafts_B=members.drafts_B,
            firsts_B=members.indices_B * (plan.num_steps + 1) if plan.num_steps else members.indices_B,
            places_W=_indices(plan.num_steps + 1, device),
            after_T=_column([token for chunk in chunks for token in _after(chunk)], device),
            begin=begin,
            seeds=Seeds.of(plan.joins, device),
            shipped_N=_column(_first_draws(chunks) if plan.ships else [], device),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        columns = [value for value in vars(self).values() if isinstance(value, Tensor)]
        return (*columns, *self.begin.tensors, *self.seeds.tensors)

    def places(self, rows_L: Tensor, seq_lens_L: Tensor) -> tuple[Tensor, Tensor]:
        """The row and the position of each token of a launch: first tokens, then W of each row. `rows_L` and
        `seq_lens_L`: of the choices, as in Relay."""
        firsts_D, decodes_B = rows_L.split((self.num_draws, len(self.seq_lens_B)))
        positions_BW = self.seq_lens_B[:, None] + torch.arange(1, self.width + 1, device=rows_L.device)
        return (
            torch.cat((firsts_D, decodes_B.repeat_interleave(self.width))),
            torch.cat((seq_lens_L[: self.num_draws], positions_BW.reshape(-1))),
        )

    def first_logits(self, num_verified: int, index: int) -> int:
        """The index of the logits after the last known token of a choice, by its place among the draws. The target
        computes `num_verified` tokens of each row that decodes."""
        return index if index < self.num_draws else self.num_draws + (index - self.num_draws) * num_verified

    def runs(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The runs in a launch's tokens (L): the first tokens, then what each row has drawn up to BEYOND."""
        if self.width == 1:
            return tuple([(token,) for token in tokens])
        firsts = tuple([(token,) for token in tokens[: self.num_draws]])
        spans = [tokens[start : start + self.width] for start in range(self.num_draws, len(tokens), self.width)]
        return (*firsts, *[tuple([token for token in span if token != BEYOND]) for span in spans])


@dataclass(frozen=True)
class Beginning:
    """N rows whose last known token no draft has read to propose the next one. It reads it now."""

    rows_N: Tensor  # indices into B
    input: ModelInput  # the last committed slots of each, one for each layer; its ids are the last known tokens

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        return (self.rows_N, *self.input.tensors.values())

    @property
    def has_rows(self) -> bool:
        """Whether there are any."""
        return self.rows_N.numel() > 0

    @staticmethod
    def of(
        begins: Sequence[int], running: ScheduleBatch, table: PageTable, page_size: int, num_layers: int = 1
    ) -> "Beginning":
        """Those at the indices `begins` of the rows that decode."""
        device = running.rows_B.device
        if not begins:
            return nobody_begins(device)
        rows_N = int64_column(begins, device)
        spans = Spans.of(running, table, page_size, running.seq_lens_cpu - num_layers, num_layers).input()
        slots_T = int64_column([at * num_layers + slot for at in begins for slot in range(num_layers)], device)
        chosen = replace(spans.mapped(lambda tensor: tensor.index_select(0, slots_T)), num_decodes=len(slots_T))
        return Beginning(rows_N, replace(chosen, logit_indices_L=torch.arange(len(slots_T), device=device)))


@dataclass(frozen=True)
class Seeds:
    """N rows whose prompts were computed elsewhere, and the hidden states that came with their KV."""

    rows_N: Tensor
    owners_N: Tensor
    hidden_NE: Tensor  # float32; see Join, as for what follows
    before_NK: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        return self.rows_N, self.owners_N, self.hidden_NE, self.before_NK

    @property
    def has_rows(self) -> bool:
        """Whether there are any."""
        return self.rows_N.numel() > 0

    @staticmethod
    def of(joins: Sequence[Join], device: torch.device) -> "Seeds":
        """Those of the rows that join with a hidden state."""
        seeded = [join for join in joins if join.hidden]
        if not seeded:
            return no_seeds(device)
        draws = [join.draw for join in seeded]
        states = [np.frombuffer(join.hidden, "<f4") for join in seeded]
        return Seeds(
            rows_N=int64_column([draw.row for draw in draws], device),
            owners_N=owners_of(draws, device),
            hidden_NE=torch.from_numpy(np.stack(states)).to(device, non_blocking=True),
            before_NK=int64_column([join.before for join in seeded], device),
        )


def _column(values: Sequence[int], device: torch.device) -> Tensor:
    return int64_column(values, device) if values else _nothing(device)


@cache
def _nothing(device: torch.device) -> Tensor:
    """Most launches have no chunks and ship nothing, so it is made once."""
    return int64_column([], device)


@cache
def _indices(width: int, device: torch.device) -> Tensor:
    """0, 1, ... of so many. Most launches have one width, so each is made once."""
    return torch.arange(width, device=device)


@cache
def nobody_begins(device: torch.device) -> Beginning:
    """No rows. Most launches have this one, so it is made once."""
    none_N, none_N1 = int64_column([], device), torch.zeros((0, 1), dtype=torch.int64, device=device)
    return Beginning(none_N, ModelInput(none_N, none_N, none_N, none_N1, none_N, (), (), 0, 0, none_N))


@cache
def no_seeds(device: torch.device) -> Seeds:
    """No rows."""
    none_N, none_N1 = int64_column([], device), torch.zeros((0, 1), dtype=torch.int64, device=device)
    return Seeds(none_N, none_N, none_N1.float(), none_N1)


def behind_chunks(plan: Plan, running: ScheduleBatch, spans: Spans, table: PageTable, page_size: int) -> ModelInput:
    """One forward of chunks and of positions of all rows."""
    if not plan.chunks and len(running):
        return spans.input()
    prompts = extend_input(plan.chunks, table, page_size, running.rows_B.device)
    return joined(prompts, spans.input()) if len(running) else prompts


def verifying(plan: Plan, inp: ModelInput, running: ScheduleBatch, spans: Spans) -> ForwardBatch:
    """The target's launch of `inp`, chunks and the W tokens of each row in `spans`. It draws after each token."""
    columns = running.repeated(plan.num_steps + 1)
    return ForwardBatch(
        input=inp,
        sampling=sampling_of(plan.chunks, columns, spans.after_T, spans.after_cpu.reshape(-1)),
        decode_owners_D=running.members.owners_B,
    )


def _first_draws(chunks: Sequence[Chunk]) -> list[int]:
    """The place of the first draw of each chunk that has some, among all draws."""
    counts = [len(chunk.draws) for chunk in chunks]
    return [sum(counts[:index]) for index, count in enumerate(counts) if count]


def _after(chunk: Chunk) -> tuple[int, ...]:
    return (*chunk.ids[1:], *(chunk.ahead[:1] or (0,)))
