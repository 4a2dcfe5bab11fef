"""The inputs of a launch with a draft: what the draft computes before and after the target's forward.

Of a row with m committed tokens and W tokens to verify, the target computes positions m to m + W - 1: the last known
token x_m and the proposals. With W = 1 there are none: it is an ordinary launch, and the draft only writes its KV.
A draft's slot i holds KV of the token x_(i+1) and the target's feature at position i. Positions from the row's limit on
are written to page 0, and what is drawn there is never used.
Shapes: B rows that decode, W width, N rows that begin, T tokens of the target's forward, L rows of its logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from model.inputs import ModelInput, int64_column
from scheduler.execution.batches import ForwardBatch, ScheduleBatch, draws_of, extend_input, joined, sampling_of
from scheduler.execution.future_rows import owners_of
from scheduler.execution.page_table import PageTable
from scheduler.execution.spans import Spans
from scheduler.plan import Chunk, Draw, Join, Plan
from scheduler.speculation.draft_layers import Window, after_chunks
from scheduler.speculation.tree_batch import TreeBatch

BEYOND: Final = -2  # behind the end of a run of tokens


@dataclass(frozen=True)
class DraftBatch:
    """All that a launch of B rows reads for the draft beside its ForwardBatch, whose decodes are B * W, row by row."""

    num_draws: int  # first tokens of prompts, which come first in L
    rows_B: Tensor
    owners_B: Tensor  # see owners_of
    ids_B: Tensor  # the last known tokens, or sentinels
    after_T: Tensor  # the token behind each token of a chunk; 0 where it is not known yet
    topk: int  # proposals after a token that the FutureMap holds
    chain: "Chain | None"  # None: nothing is proposed, W is 1
    begin: "Beginning | None"
    seeds: "Seeds | None"
    window: Window | None  # of a draft of several layers
    shipped_N: Tensor | None  # indices into L: one row of each prompt whose first tokens are drawn; if the launch ships
    tree: TreeBatch | None = None  # the kept path is then a chain of W tokens

    @property
    def width(self) -> int:
        """W."""
        return 1 if self.chain is None else self.chain.width

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        own = [value for value in vars(self).values() if isinstance(value, Tensor)]
        parts = (self.chain, self.begin, self.seeds, self.window, self.tree)
        return (*own, *[tensor for part in parts if part is not None for tensor in part.tensors])

    def runs(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The runs in a launch's tokens (L): the first tokens, then what each row has drawn up to BEYOND."""
        firsts = tuple([(token,) for token in tokens[: self.num_draws]])
        spans = [tokens[start : start + self.width] for start in range(self.num_draws, len(tokens), self.width)]
        return (*firsts, *[tuple([token for token in span if token != BEYOND]) for span in spans])

    @staticmethod
    def init_new(
        plan: Plan,
        running: ScheduleBatch,
        table: PageTable,
        page_size: int,
        unread: Mapping[int, int],
        num_layers: int = 1,
    ) -> "tuple[ForwardBatch, DraftBatch]":
        """Builds the inputs of a launch. The lengths of `running` are known; without proposals it advances.
        `num_layers` of the draft each draft another token.

        `unread` are rows, with their generations, whose last token no draft has read to propose the next one. If
        nothing is proposed, the draft reads the last token only of rows that have not decoded yet.
        """
        device, chunks = running.rows_B.device, plan.chunks
        if plan.num_steps:
            begins = [at for at, (row, owner) in enumerate(running.members.owners) if unread.get(row) == owner]
            begins = [at for at in begins if running.draws[at].drafts]
        else:
            begins = [len(running) - len(plan.joins) + at for at, join in enumerate(plan.joins) if join.begins]
        draft = DraftBatch(
            num_draws=len(draws_of(chunks)),
            rows_B=running.rows_B,
            owners_B=running.members.owners_B,
            ids_B=running.input_ids_B,
            after_T=int64_column([token for chunk in chunks for token in _after(chunk)], device),
            topk=plan.topk,
            chain=None,
            begin=Beginning.of(begins, running, table, page_size, num_layers) if begins else None,
            seeds=Seeds.of(plan.joins, device),
            window=_window(plan, running, table, page_size, num_layers) if num_layers > 1 else None,
            shipped_N=int64_column(_first_draws(chunks), device) if plan.ships else None,
        )
        if not plan.num_steps:
            running.advance()
            return ForwardBatch.init_new(chunks, running, table, page_size), draft
        inp, chain = Chain.init_new(plan, running, table, page_size, has_steps=num_layers == 1 and plan.topk == 1)
        if plan.topk > 1 and len(running):
            batch, tree = TreeBatch.init_new(plan, running, table, page_size, inp)
            return batch, replace(draft, chain=chain, tree=tree)
        return chain.verified(inp, chunks, running), replace(draft, chain=chain)


@dataclass(frozen=True)
class Chain:
    """What a launch needs to propose W - 1 tokens for each row, one behind the other."""

    width: int
    seq_lens_B: Tensor  # committed before the launch
    limits_B: Tensor
    steps: tuple[ModelInput, ...]  # one slot of each row for each proposal but the first; its ids are still to come
    drafts_B: Tensor | None  # bool: False where nothing is ever proposed; None: True everywhere

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        own = [value for value in vars(self).values() if isinstance(value, Tensor)]
        return (*own, *[tensor for inp in self.steps for tensor in inp.tensors.values()])

    @staticmethod
    def init_new(
        plan: Plan, running: ScheduleBatch, table: PageTable, page_size: int, *, has_steps: bool
    ) -> "tuple[ModelInput, Chain]":
        """The chain, and the input of a forward of chunks and of W tokens of each row. `has_steps`: a layer proposes
        several tokens, one behind the other."""
        width = plan.num_steps + 1
        spans = Spans.of(running, table, page_size, running.seq_lens_cpu, width)
        chain = Chain(
            width=width,
            seq_lens_B=running.seq_lens_B,
            limits_B=running.members.limits_B,
            steps=tuple(spans.input(slice(at, at + 1)) for at in range(width - 2 if has_steps else 0)),
            drafts_B=_drafts(running.draws, running.rows_B.device),
        )
        return _behind_chunks(plan.chunks, running, spans, table, page_size), chain

    def verified(self, inp: ModelInput, chunks: Sequence[Chunk], running: ScheduleBatch) -> ForwardBatch:
        """The target's launch of `inp`, which draws after each token."""
        width = self.width
        position_BW = (running.seq_lens_B + 1)[:, None] + torch.arange(width, device=running.rows_B.device)
        lens = np.repeat(running.seq_lens_cpu, width) + np.tile(np.arange(1, width + 1), len(running))
        return ForwardBatch(
            input=inp,
            sampling=sampling_of(chunks, running.repeated(width), position_BW.reshape(-1), lens),
            decode_owners_D=running.members.owners_B,
        )


@dataclass(frozen=True)
class Beginning:
    """Rows whose last known token no draft has read to propose the next one. It reads it now."""

    rows_N: Tensor  # indices into B
    input: ModelInput  # the last committed slots of each, one for each layer; its ids are the last known tokens

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        return (self.rows_N, *self.input.tensors.values())

    @staticmethod
    def of(
        begins: Sequence[int], running: ScheduleBatch, table: PageTable, page_size: int, num_layers: int = 1
    ) -> "Beginning":
        """Those at the indices `begins` of the rows that decode."""
        rows_N = int64_column(begins, running.rows_B.device)
        spans = Spans.of(running, table, page_size, running.seq_lens_cpu - num_layers, num_layers).input()
        slots_T = int64_column([at * num_layers + slot for at in begins for slot in range(num_layers)], rows_N.device)
        chosen = replace(spans.mapped(lambda tensor: tensor.index_select(0, slots_T)), num_decodes=len(slots_T))
        chosen = replace(chosen, logit_indices_L=torch.arange(len(slots_T), device=rows_N.device))
        return Beginning(rows_N, chosen)


@dataclass(frozen=True)
class Seeds:
    """The rows whose prompts were computed elsewhere, and the hidden states that came with their KV."""

    rows_N: Tensor
    owners_N: Tensor
    hidden_NE: Tensor  # float32; see Join, as for what follows
    before_NK: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        return self.rows_N, self.owners_N, self.hidden_NE, self.before_NK

    @staticmethod
    def of(joins: Sequence[Join], device: torch.device) -> "Seeds | None":
        """Those of the rows that join with a hidden state."""
        seeded = [join for join in joins if join.hidden]
        if not seeded:
            return None
        hidden = np.stack([np.frombuffer(join.hidden, "<f4") for join in seeded])
        draws = [join.draw for join in seeded]
        rows_N = int64_column([draw.row for draw in draws], device)
        before_NK = int64_column([join.before for join in seeded], device)
        return Seeds(rows_N, owners_of(draws, device), torch.from_numpy(hidden).to(device), before_NK)


def _behind_chunks(
    chunks: Sequence[Chunk], running: ScheduleBatch, spans: Spans, table: PageTable, page_size: int
) -> ModelInput:
    """One forward of chunks and of positions of all rows."""
    if not chunks and len(running):
        return spans.input()
    prompts = extend_input(chunks, table, page_size, running.rows_B.device)
    return joined(prompts, spans.input()) if len(running) else prompts


def _window(plan: Plan, running: ScheduleBatch, table: PageTable, page_size: int, num_layers: int) -> Window:
    """What the layers read behind the target's forward."""
    ahead = num_layers - 1
    spans = Spans.of(running, table, page_size, running.seq_lens_cpu - ahead, ahead + plan.num_steps + 1)
    inp = _behind_chunks(plan.chunks, running, spans, table, page_size)
    return Window(inp, after_chunks(plan.chunks, num_layers, running.rows_B.device))


def _drafts(draws: Sequence[Draw], device: torch.device) -> Tensor | None:
    if all(draw.drafts for draw in draws):
        return None
    return torch.tensor([draw.drafts for draw in draws], device=device)


def _first_draws(chunks: Sequence[Chunk]) -> list[int]:
    """The place of the first draw of each chunk that has some, among all draws."""
    counts = [len(chunk.draws) for chunk in chunks]
    return [sum(counts[:place]) for place, count in enumerate(counts) if count]


def _after(chunk: Chunk) -> tuple[int, ...]:
    return (*chunk.ids[1:], *(chunk.ahead[:1] or (0,)))
