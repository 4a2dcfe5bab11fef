"""Layers: a draft of several layers, each of which drafts another token.

J layers read S slots of each row. Slot i of layer j reads the token x_(i+1+j), and what layer j - 1 gave at slot i;
layer 0 reads the target's feature at i. With x_m as the last known token, layer j proposes the token x_(m+1+j) at slot
m - 1, and layer j + 1 reads it. So KV of layer j at the last j slots depends on proposals. It is written again when
their tokens are known, from features that the launch before has stashed.

A row begins with its last J slots. After a launch that has verified W tokens, the layers read these and the J - 1 slots
before them. A feature of zeros is none: its slot is left as it is.
Shapes: B rows, S slots of each, W tokens to verify, P tokens of prompts, T = P + B * S, D prompts that end, N rows that
begin, E hidden, X = S + J - 1 tokens that the layers read of a row, K proposals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from model.draft import Draft
from model.inputs import ModelInput, int64_column
from model.paged_kv import PagedKv
from model.sampling_input import NOT_A_TOKEN
from scheduler.execution.batches import ForwardBatch, ScheduleBatch
from scheduler.execution.future_map import DraftExtras
from scheduler.execution.spans import Spans
from scheduler.plan import Chunk, Plan
from scheduler.speculation.draft_rows import Beginning, DraftRows, behind_chunks, verifying
from scheduler.speculation.mode import (
    DraftParts,
    Kept,
    OnLayer,
    hidden_at_ends,
    keep_chain,
    last_positions,
    run_target,
)


@dataclass(frozen=True)
class Past:
    """The last J known tokens of each row, and the target's features of the J positions before the last one."""

    tokens_BJ: Tensor
    hidden_BJE: Tensor

    @staticmethod
    def stashed(extras: DraftExtras, last_B: Tensor, draft: Draft) -> "Past":
        """What the launch before has left of rows with these last tokens; zeros where it has left nothing."""
        ahead, rows = draft.group.lookahead, last_B.shape[0]
        before_BK, hidden_BJE = extras.before_NK, extras.hidden_NE
        if before_BK is None or hidden_BJE is None:
            before_BK = last_B.new_zeros((rows, ahead - 1))
            hidden_BJE = torch.zeros((rows, ahead, draft.hidden_size), dtype=draft.hidden_dtype, device=last_B.device)
        return Past(torch.cat((before_BK, last_B[:, None]), 1), hidden_BJE)

    @staticmethod
    def of_prompts(inp: ModelInput, ends_D: Tensor, hidden_TE: Tensor, firsts_D: Tensor, num_layers: int) -> "Past":
        """The past of prompts that end at `ends_D` in T. `firsts_D` are the tokens drawn behind them."""
        at_DJ, is_there_DJ = last_positions(inp, ends_D, num_layers)
        tokens_DJ = inp.input_ids_T[at_DJ].where(is_there_DJ, 0)
        hidden_DJE = hidden_at_ends(inp, ends_D, hidden_TE, num_layers)
        return Past(torch.cat((tokens_DJ[:, 1:], firsts_D[:, None]), 1), hidden_DJE)

    def extras(self, proposals_BK: Tensor) -> DraftExtras:
        """To be stashed with these proposals. The last token is stashed apart."""
        return DraftExtras(topk_index_NK=proposals_BK, hidden_NE=self.hidden_BJE, before_NK=self.tokens_BJ[:, :-1])

    def take(self, rows_N: Tensor) -> "Past":
        """That of these rows."""
        return Past(self.tokens_BJ[rows_N], self.hidden_BJE[rows_N])

    def concat(self, other: "Past") -> "Past":
        """That of these rows, then the other's."""
        return Past(torch.cat((self.tokens_BJ, other.tokens_BJ)), torch.cat((self.hidden_BJE, other.hidden_BJE)))


@dataclass(frozen=True)
class Window:
    """Where the layers read: P tokens of chunks, then S slots of each row."""

    input: ModelInput  # its ids are still to come
    after_JP: Tensor  # the tokens that layer j reads with the chunks; 0 where they are not known yet

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        return (*self.input.tensors.values(), self.after_JP)


@dataclass(frozen=True)
class LayersBatch:
    """The inputs of one launch."""

    rows: DraftRows
    window: Window

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        return (*self.rows.tensors, *self.window.tensors)


@dataclass(frozen=True)
class LayersProposed:
    """The proposals (B, K) behind what is known. Negative: nothing is proposed."""

    past: Past
    proposals_BK: Tensor


@dataclass(frozen=True)
class KeptLayers(Kept):
    """What is kept, and what was known before."""

    past: Past


class Layers:
    """See mode.py for what its methods do. One object is for launches that propose, one for launches that do not:
    there, W is 1, and the layers only write their KV."""

    def __init__(self, parts: DraftParts, *, proposes: bool) -> None:
        self._parts = parts
        self._proposes = proposes
        self._num_layers = parts.draft.group.lookahead

    def num_verified(self, plan: Plan) -> int:
        """See DraftMode."""
        return plan.num_steps + 1

    def build(self, plan: Plan, running: ScheduleBatch, begins: Sequence[int]) -> tuple[ForwardBatch, LayersBatch]:
        """See DraftMode."""
        table, page_size = self._parts.device.page_table, self._parts.device.kv.layout.page_size
        ahead, width = self._num_layers - 1, plan.num_steps + 1
        spans = Spans.of(running, table, page_size, running.seq_lens_cpu - ahead, ahead + width)
        after_JP = after_chunks(plan.chunks, self._num_layers, running.rows_B.device)
        batch = LayersBatch(
            rows=DraftRows.of(plan, running, Beginning.of(begins, running, table, page_size, self._num_layers)),
            window=Window(behind_chunks(plan, running, spans, table, page_size), after_JP),
        )
        if not self._proposes:
            running.advance()
            return ForwardBatch.init_new(plan.chunks, running, table, page_size), batch
        verified = Spans.of(running, table, page_size, running.seq_lens_cpu, width)
        return verifying(plan, behind_chunks(plan, running, verified, table, page_size), running, verified), batch

    def propose(self, batch: LayersBatch) -> LayersProposed:
        """See DraftMode."""
        rows, draft, future_map = batch.rows, self._parts.draft, self._parts.device.future_map
        ids_B = future_map.resolve_future(rows.ids_B, rows.owners_B)
        self._stash_seeds(rows)
        extras = future_map.resolve_extras(rows.rows_B, rows.owners_B)
        past, proposals_BJ = Past.stashed(extras, ids_B, draft), extras.topk_index_NK
        if proposals_BJ is None or extras.hidden_NE is None:
            proposals_BJ = torch.full_like(past.tokens_BJ, NOT_A_TOKEN)
        if (begin := rows.begin).has_rows:
            begun_NJ = begin_layers(
                draft, self._parts.device.kv, begin.input, past.take(begin.rows_N), proposes=self._proposes
            )
            proposals_BJ = proposals_BJ.index_copy(0, begin.rows_N, begun_NJ)
        if rows.drafts_B is not None:  # a row may have had a draft, and left proposals
            proposals_BJ = proposals_BJ.where(rows.drafts_B[:, None], NOT_A_TOKEN)
        return LayersProposed(past, proposals_BJ[:, : rows.width - 1])

    def _stash_seeds(self, rows: DraftRows) -> None:
        """Stashes the hidden states, and the tokens, with which prompts computed elsewhere begin."""
        if not (seeds := rows.seeds).has_rows:
            return
        hidden_NE = seeds.hidden_NE.to(self._parts.draft.hidden_dtype)
        none_NJ = torch.full_like(seeds.rows_N, NOT_A_TOKEN)[:, None].expand(-1, self._num_layers)
        extras = DraftExtras(none_NJ, None, hidden_NE.unflatten(1, (self._num_layers, -1)), seeds.before_NK)
        self._parts.device.future_map.stash_extras(seeds.rows_N, extras, seeds.owners_N)

    def verify(
        self, forward: ForwardBatch, batch: LayersBatch, proposed: LayersProposed, on_layer: OnLayer
    ) -> KeptLayers:
        """See DraftMode."""
        last_B1, proposals_BK = proposed.past.tokens_BJ[:, -1:], proposed.proposals_BK
        ids_BW = torch.cat((last_B1, proposals_BK.clamp(min=0)), 1)
        kept = keep_chain(batch.rows, run_target(self._parts, forward, batch.rows, ids_BW, on_layer), proposals_BK)
        return KeptLayers(**vars(kept), past=proposed.past)

    def extend(
        self, forward: ForwardBatch, batch: LayersBatch, verified: KeptLayers, on_layer: OnLayer
    ) -> tuple[Tensor, DraftExtras]:
        """See DraftMode."""
        rows, kv = batch.rows, self._parts.device.kv
        proposals_BJ, past = extend_layers(
            self._parts.draft, kv, batch.window, verified, on_layer, proposes=self._proposes
        )
        if rows.drafts_B is not None:
            proposals_BJ = proposals_BJ.where(rows.drafts_B[:, None], NOT_A_TOKEN)

        inp, firsts_D = forward.input, verified.tokens_L[: rows.num_draws]
        ends_D = inp.logit_indices_L[: rows.num_draws]
        prompts = Past.of_prompts(inp, ends_D, verified.hidden_TE, firsts_D, self._num_layers)
        past = prompts.concat(past)
        none_DJ = torch.full_like(prompts.tokens_BJ, NOT_A_TOKEN)
        return past.tokens_BJ[:, -1].clamp(min=0), past.extras(torch.cat((none_DJ, proposals_BJ)))


def after_chunks(chunks: Sequence[Chunk], num_layers: int, device: torch.device) -> Tensor:
    """(J, P): layer j reads the token j + 1 behind each token of a chunk. 0 where it is not known yet."""

    def of_layer(layer: int) -> list[int]:
        known = [((*chunk.ids, *chunk.ahead)[layer + 1 :], len(chunk.ids)) for chunk in chunks]
        return [token for ids, size in known for token in (*ids, *(0,) * size)[:size]]

    return int64_column([of_layer(layer) for layer in range(num_layers)], device)


def begin_layers(draft: Draft, kv: PagedKv, inp: ModelInput, past: Past, *, proposes: bool) -> Tensor:
    """The proposals (N, J) of rows that begin, if the launch `proposes`; `inp` has their last J slots."""
    num_layers = past.tokens_BJ.shape[1]
    window = Window(inp, past.tokens_BJ.new_empty((num_layers, 0)))
    first_B = torch.full_like(past.tokens_BJ[:, 0], num_layers - 1)
    return _read(
        draft, kv, window, past.tokens_BJ, past.hidden_BJE, past.hidden_BJE[:0, 0], first_B, None, proposes=proposes
    )


def extend_layers(
    draft: Draft, kv: PagedKv, window: Window, kept: KeptLayers, on_layer: OnLayer, *, proposes: bool
) -> tuple[Tensor, Past]:
    """The proposals (B, J) behind what is kept of the tokens that the target has drawn, and the rows' new past."""
    past, drawn_BW, kept_B, hidden_TE = kept.past, kept.drawn_BW, kept.kept_B, kept.hidden_TE
    num_prompts, num_layers = window.after_JP.shape[1], past.tokens_BJ.shape[1]
    drawn_BWE = hidden_TE[num_prompts:].view(*drawn_BW.shape, hidden_TE.shape[1])
    hidden_BSE = torch.cat((past.hidden_BJE[:, 1:], drawn_BWE), 1)
    tokens_BS = torch.cat((past.tokens_BJ[:, 1:], drawn_BW.clamp(min=0)), 1)
    last_B = kept_B + num_layers - 1
    proposals_BJ = _read(
        draft, kv, window, tokens_BS, hidden_BSE, hidden_TE[:num_prompts], last_B, on_layer, proposes=proposes
    )

    at_BJ = kept_B[:, None] + torch.arange(num_layers, device=kept_B.device)
    hidden_BJE = hidden_BSE.take_along_dim(at_BJ[:, :, None], 1)
    return proposals_BJ, Past(tokens_BS.take_along_dim(at_BJ, 1), hidden_BJE)


def _read(
    draft: Draft,
    kv: PagedKv,
    window: Window,
    tokens_BS: Tensor,
    hidden_BSE: Tensor,
    prompts_PE: Tensor,
    last_B: Tensor,
    on_layer: OnLayer,
    *,
    proposes: bool,
) -> Tensor:
    """Runs all layers. `tokens_BS` are the tokens that layer 0 reads, known up to `last_B` of S; it proposes there."""
    (num_layers, num_prompts), (rows, size) = window.after_JP.shape, tokens_BS.shape
    has_none_T = F.pad(~hidden_BSE.any(-1).reshape(-1), (num_prompts, 0))
    inp = replace(window.input, slots_T=window.input.slots_T.masked_fill(has_none_T, 0))
    hidden_TE = torch.cat((prompts_PE, hidden_BSE.flatten(0, 1)))
    tokens_BX = F.pad(tokens_BS, (0, num_layers - 1))
    wanted_B = num_prompts + torch.arange(rows, device=last_B.device) * size + last_B
    proposals = [torch.full_like(last_B, NOT_A_TOKEN)] * num_layers
    for layer in range(num_layers):
        ids_T = torch.cat((window.after_JP[layer], tokens_BX[:, layer : layer + size].reshape(-1)))
        hidden_TE = draft.run_layer(layer, replace(inp, input_ids_T=ids_T), hidden_TE, kv, on_layer)
        if proposes and rows:
            proposals[layer] = draft.logits(hidden_TE[wanted_B]).argmax(-1)
            if layer + 1 < num_layers:
                next_B1 = (last_B + 1 + layer)[:, None]
                tokens_BX = tokens_BX.scatter(1, next_B1, proposals[layer][:, None].clamp(min=0))
    return torch.stack(proposals, 1)
