"""A draft of one layer: what Chain, Tree and Quiet share. It reads a token and proposes the next ones.

The draft reads x_m at slot m - 1 and proposes tokens behind it. The launch before has left these first proposals in the
FutureMap, with the draft's hidden state. Of a row that begins, or follows a launch without proposals, it has left the
target's hidden state only: the draft reads the last known token now.
Shapes: B rows that decode, K proposals after a token, W tokens of each row, N rows that begin, D first tokens of
prompts, L draws, E hidden.
"""

from dataclasses import replace

import torch
from torch import Tensor

from model.draft import first_layer
from model.inputs import ModelInput
from model.sampling_input import NOT_A_TOKEN
from scheduler.execution.batches import ForwardBatch
from scheduler.execution.future_map import DraftExtras
from scheduler.speculation.draft_rows import DraftRows
from scheduler.speculation.draft_tree import best_tokens
from scheduler.speculation.mode import DraftParts, Kept, OnLayer


class OneLayer:
    """Proposes the likeliest token, as chains need it."""

    def __init__(self, parts: DraftParts) -> None:
        self.draft = parts.draft
        self.kv = parts.device.kv
        self.unwritten = parts.unwritten
        self._future_map = parts.device.future_map

    def read(self, inp: ModelInput, hidden_TE: Tensor, on_layer: OnLayer = None) -> DraftExtras:
        """The draft reads the tokens of `inp`. What it proposes behind the wanted ones."""
        tokens_N, hidden_NE = self.draft.likeliest(inp, hidden_TE, self.kv, on_layer)
        return DraftExtras(tokens_N[:, None], None, hidden_NE)

    def nothing(self, hidden_NE: Tensor) -> DraftExtras:
        """For rows whose last token the draft has not read: no proposals, and the target's hidden states."""
        none_N1 = torch.full((hidden_NE.shape[0], 1), NOT_A_TOKEN, device=hidden_NE.device)
        return DraftExtras(none_N1, None, hidden_NE)

    def last_known(self, rows: DraftRows) -> Tensor:
        """The last known tokens (B,). Stashes the hidden states that came with prompts computed elsewhere."""
        ids_B = self._future_map.resolve_future(rows.ids_B, rows.owners_B)
        if (seeds := rows.seeds).has_rows:
            hidden_NE = seeds.hidden_NE.to(self.draft.hidden_dtype)
            self._future_map.stash_extras(seeds.rows_N, self.nothing(hidden_NE), seeds.owners_N)
        return ids_B

    def first_proposals(self, rows: DraftRows, ids_B: Tensor) -> DraftExtras | None:
        """The first proposals behind the last known tokens `ids_B`. None: no launch has left anything for a draft yet.

        Before a draft proposes, nothing may be unwritten.
        """
        extras, begin = self._future_map.resolve_extras(rows.rows_B, rows.owners_B), rows.begin
        if extras.hidden_NE is None:
            return None
        if begin.has_rows:
            inp = replace(begin.input, input_ids_T=ids_B[begin.rows_N])
            extras = extras.replaced(begin.rows_N, self.read(inp, extras.hidden_NE[begin.rows_N]))
        return extras.only_for(rows.drafts_B)  # a row may have had a draft, and left proposals

    def add_beginning(self, rows: DraftRows, ids_B: Tensor) -> None:
        """Where nothing is proposed, the draft writes its KV of the last known tokens of rows that begin later."""
        if not (begin := rows.begin).has_rows:
            return
        extras = self._future_map.resolve_extras(rows.rows_B[begin.rows_N], rows.owners_B[begin.rows_N])
        if extras.hidden_NE is not None:
            self.unwritten.add(replace(begin.input, input_ids_T=ids_B[begin.rows_N]), extras.hidden_NE)

    def extend(
        self, forward: ForwardBatch, inp: ModelInput, rows: DraftRows, kept: Kept, on_layer: OnLayer
    ) -> tuple[Tensor, DraftExtras]:
        """Reads chunks and the kept tokens as a chain, `inp`, with the target's features, and proposes the first token
        of the next launch. After a prompt there is no proposal: each of its choices draws a token of its own."""
        num_prompts, drawn_T = rows.after_T.shape[0], kept.drawn_BW.reshape(-1).clamp(min=0)
        last_B = rows.firsts_B + kept.kept_B
        ids_T = torch.cat((rows.after_T, drawn_T)) if num_prompts else drawn_T
        inp = replace(inp, input_ids_T=ids_T, logit_indices_L=last_B + num_prompts if num_prompts else last_B)
        extras = self.read(inp, kept.hidden_TE, on_layer).only_for(rows.drafts_B)

        tokens_B = drawn_T.index_select(0, last_B)
        if not rows.num_draws:
            return tokens_B, extras
        ends_D = forward.input.logit_indices_L[: rows.num_draws]
        tokens_L = torch.cat((kept.tokens_L[: rows.num_draws].clamp(min=0), tokens_B))
        return tokens_L, self.nothing(kept.hidden_TE[ends_D]).followed_by(extras)


class TreeLayer(OneLayer):
    """Proposes `topk` tokens with their log-probabilities, as trees need them."""

    def __init__(self, parts: DraftParts, topk: int) -> None:
        super().__init__(parts)
        self._topk = topk

    def read(self, inp: ModelInput, hidden_TE: Tensor, on_layer: OnLayer = None) -> DraftExtras:
        """The draft reads the tokens of `inp`. What it proposes behind the wanted ones."""
        logits_NV, hidden_NE = first_layer(self.draft, inp, hidden_TE, self.kv, on_layer)
        return DraftExtras(*best_tokens(logits_NV, self._topk), hidden_NE)

    def nothing(self, hidden_NE: Tensor) -> DraftExtras:
        """For rows whose last token the draft has not read: no proposals, and the target's hidden states."""
        none_NK = torch.full((hidden_NE.shape[0], self._topk), NOT_A_TOKEN, device=hidden_NE.device)
        return DraftExtras(none_NK, none_NK.float(), hidden_NE)
