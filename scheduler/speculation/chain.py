"""Chains: a draft of one layer proposes tokens one behind the other.

With W = 4, a row with the last known token x_m has the proposals p1, p2, p3. The launch before has left p1. The draft
reads p1 and proposes p2, reads p2 and proposes p3. The target computes x_m, p1, p2, p3 and draws after each.
Shapes: B rows that decode, K = W - 1 proposals of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.inputs import ChainInput
from model.sampling_input import NOT_A_TOKEN
from scheduler.execution.batches import ForwardBatch, ScheduleBatch
from scheduler.execution.future_map import DraftExtras
from scheduler.execution.spans import Spans
from scheduler.plan import Plan
from scheduler.speculation.draft_rows import Beginning, DraftRows, behind_chunks, verifying
from scheduler.speculation.mode import DraftParts, Kept, OnLayer, keep_chain, run_target
from scheduler.speculation.one_layer import OneLayer


@dataclass(frozen=True)
class ChainBatch:
    """The inputs of one launch."""

    rows: DraftRows
    steps: ChainInput  # one slot of each row for each proposal but the first

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        return (*self.rows.tensors, *self.steps.tensors)


class Chain:
    """See mode.py for what its methods do."""

    def __init__(self, parts: DraftParts, layer: OneLayer) -> None:
        self._parts = parts
        self._layer = layer

    def num_verified(self, plan: Plan) -> int:
        """See DraftMode."""
        return plan.num_steps + 1

    def build(self, plan: Plan, running: ScheduleBatch, begins: Sequence[int]) -> tuple[ForwardBatch, ChainBatch]:
        """See DraftMode."""
        table, page_size = self._parts.device.page_table, self._parts.device.kv.layout.page_size
        spans = Spans.of(running, table, page_size, running.seq_lens_cpu, plan.num_steps + 1)
        batch = ChainBatch(
            DraftRows.of(plan, running, Beginning.of(begins, running, table, page_size)),
            spans.chain(plan.num_steps - 1),
        )
        return verifying(plan, behind_chunks(plan, running, spans, table, page_size), running, spans), batch

    def propose(self, batch: ChainBatch) -> tuple[Tensor, Tensor]:
        """The last known tokens (B,), and the proposals (B, K) behind them. Negative: nothing is proposed."""
        ids_B = self._layer.last_known(batch.rows)
        first = self._layer.first_proposals(batch.rows, ids_B)
        if first is None or first.topk_index_NK is None or first.hidden_NE is None:
            return ids_B, ids_B.new_full((ids_B.shape[0], batch.rows.width - 1), NOT_A_TOKEN)

        first_B = first.topk_index_NK[:, 0]
        if batch.rows.width == 2:
            return ids_B, first_B[:, None]
        return ids_B, self._layer.draft.chain(batch.steps, first_B, first.hidden_NE, self._layer.kv).t()

    def verify(
        self, forward: ForwardBatch, batch: ChainBatch, proposed: tuple[Tensor, Tensor], on_layer: OnLayer
    ) -> Kept:
        """See DraftMode."""
        ids_B, proposals_BK = proposed
        ids_BW = torch.cat((ids_B[:, None], proposals_BK.clamp(min=0)), 1)
        drawn = run_target(self._parts, forward, batch.rows, ids_BW, on_layer)
        return keep_chain(batch.rows, drawn, proposals_BK)

    def extend(
        self, forward: ForwardBatch, batch: ChainBatch, verified: Kept, on_layer: OnLayer
    ) -> tuple[Tensor, DraftExtras]:
        """See DraftMode."""
        return self._layer.extend(forward, forward.input, batch.rows, verified, on_layer)
