"""Tokens that a draft has still to read: the KV of several launches is written at once.

A launch that proposes nothing needs no KV of the draft, and for a few tokens its calls cost more than the computing.
So these tokens wait. The planner knows that they do (planning/draft_writes.py) and decides when they are written:

    add --add--> ... --a launch that proposes, or has chunks, or WriteDraft--> write

Only drafts of one layer can wait: a layer behind it reads what the attention of the first has seen.
"""

import torch
from torch import Tensor

from model.draft import Draft
from model.inputs import ModelInput
from model.paged_kv import PagedKv


class Unwritten:
    """Belongs to the forward stream: only its segments use it."""

    def __init__(self) -> None:
        self._tokens: list[tuple[Tensor, ...]] = []  # ids, positions, slots, hidden states

    def add(self, inp: ModelInput, hidden_TE: Tensor) -> None:
        """The tokens of a forward of decodes. Its ids are the tokens behind the slots, as for Draft.run_layer.

        The hidden states are copied: they may be results of a graph, which the next launch overwrites. A launch without
        rows adds nothing: of a rank that is idle for hours, no launch would write what has gathered.
        """
        if not inp.num_decodes:
            return
        self._tokens.append((inp.input_ids_T, inp.positions_T, inp.slots_T, hidden_TE.clone()))

    def write(self, draft: Draft, kv: PagedKv) -> None:
        """Writes the KV of all that wait."""
        if not self._tokens:
            return
        waiting, self._tokens = self._tokens, []
        ids_T, positions_T, slots_T, hidden_TE = map(torch.cat, zip(*waiting, strict=True))
        inp = ModelInput(
            input_ids_T=ids_T,
            positions_T=positions_T,
            slots_T=slots_T,
            page_table_BP=torch.zeros_like(ids_T)[:, None],  # nothing attends
            seq_lens_B=torch.ones_like(ids_T),
            extend_lens=(),
            extend_seq_lens=(),
            num_decodes=len(ids_T),
            max_decode_seq_len=1,
            logit_indices_L=ids_T[:0],
        )
        draft.run_layer(0, inp, hidden_TE, kv, attends=False)
