"""Launches that propose nothing, of a draft of one layer: prompts, and decodes where proposals would not pay.

The draft only writes its KV, that of decodes later (see unwritten.py). The next launch that proposes begins with the
target's hidden state of the last token, as after a prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scheduler.execution.batches import ForwardBatch, ScheduleBatch
from scheduler.execution.future_map import DraftExtras
from scheduler.plan import Plan
from scheduler.speculation.draft_rows import Beginning, DraftRows
from scheduler.speculation.mode import DraftParts, OnLayer, Verified, run_target
from scheduler.speculation.one_layer import OneLayer


@dataclass(frozen=True)
class QuietBatch:
    """The inputs of one launch."""

    rows: DraftRows

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        return self.rows.tensors


class Quiet:
    """One token of each row, and no proposals."""

    def __init__(self, parts: DraftParts, layer: OneLayer) -> None:
        self._parts = parts
        self._layer = layer

    def num_verified(self, plan: Plan) -> int:
        """See DraftMode."""
        return 1

    def build(self, plan: Plan, running: ScheduleBatch, begins: Sequence[int]) -> tuple[ForwardBatch, QuietBatch]:
        """See DraftMode."""
        table, page_size = self._parts.device.page_table, self._parts.device.kv.layout.page_size
        batch = QuietBatch(DraftRows.of(plan, running, Beginning.of(begins, running, table, page_size)))
        running.advance()
        return ForwardBatch.init_new(plan.chunks, running, table, page_size), batch

    def propose(self, batch: QuietBatch) -> Tensor:
        """The last known tokens (B,)."""
        ids_B = self._layer.last_known(batch.rows)
        self._layer.add_beginning(batch.rows, ids_B)
        return ids_B

    def verify(self, forward: ForwardBatch, batch: QuietBatch, proposed: Tensor, on_layer: OnLayer) -> Verified:
        """See DraftMode."""
        return run_target(self._parts, forward, batch.rows, proposed, on_layer)

    def extend(
        self, forward: ForwardBatch, batch: QuietBatch, verified: Verified, on_layer: OnLayer
    ) -> tuple[Tensor, DraftExtras | None]:
        """Writes the draft's KV of prompts at once, with that of decodes beside them; that of decodes alone later."""
        layer, rows = self._layer, batch.rows
        tokens_L, hidden_TE = verified.tokens_L.clamp(min=0), verified.hidden_TE
        if not forward.input.extend_lens:
            layer.unwritten.add_launch(replace(forward.input, input_ids_T=tokens_L), hidden_TE, rows, layer.nothing)
            return tokens_L, None
        layer.unwritten.stash()  # these states are older than those of this launch
        inp = replace(forward.input, input_ids_T=torch.cat((rows.after_T, tokens_L[rows.num_draws :])))
        layer.draft.run_layer(0, inp, hidden_TE, layer.kv, on_layer, attends=False)
        return tokens_L, layer.nothing(hidden_TE[forward.input.logit_indices_L])
