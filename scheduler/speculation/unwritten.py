"""Tokens that a draft has still to read: the KV of several launches is written at once.

A launch that proposes nothing needs no KV of the draft, and for a few tokens its calls cost more than the computing.
So these tokens wait. The planner knows that they do (planning/draft_writes.py) and decides when they are written:

    add --add--> ... --a launch that proposes, or has chunks, or WriteDraft--> write

The target's hidden state of each row's last token waits with them, until the FutureMap gets it: only a launch that
proposes reads it. A row has no other owner before all that waits is written.
Only drafts of one layer can wait: a layer behind it reads what the attention of the first has seen.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from model.draft import Draft
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from scheduler.execution.future_map import DraftExtras, FutureMap
from scheduler.speculation.draft_rows import DraftRows


class _States(NamedTuple):
    """The target's hidden states (B, E) of the last tokens of B rows, and what the FutureMap keeps of them."""

    rows_B: Tensor
    owners_B: Tensor
    hidden_BE: Tensor
    extras_of: Callable[[Tensor], DraftExtras]


class Unwritten:
    """Belongs to the forward stream: only its segments use it."""

    def __init__(self, future_map: FutureMap) -> None:
        self._future_map = future_map
        self._tokens: list[tuple[Tensor, ...]] = []  # ids, positions, slots, hidden states
        self._states: list[_States] = []  # of no two launches of the same rows

    def add(self, inp: ModelInput, hidden_TE: Tensor) -> None:
        """The tokens of a forward of decodes. Its ids are the tokens behind the slots, as for Draft.run_layer.

        The hidden states are copied: they may be results of a graph, which the next launch overwrites. A launch without
        rows adds nothing: of a rank that is idle for hours, no launch would write what has gathered.
        """
        if inp.num_decodes:
            self._tokens.append((inp.input_ids_T, inp.positions_T, inp.slots_T, hidden_TE.clone()))

    def add_launch(
        self, inp: ModelInput, hidden_BE: Tensor, rows: DraftRows, extras_of: Callable[[Tensor], DraftExtras]
    ) -> None:
        """The tokens of a launch of one token of each row. `extras_of` the states go to the FutureMap later."""
        if not inp.num_decodes:
            return
        self.add(inp, hidden_BE)
        if self._states and self._states[-1].rows_B is rows.rows_B and self._states[-1].owners_B is rows.owners_B:
            self._states.pop()
        self._states.append(_States(rows.rows_B, rows.owners_B, self._tokens[-1][-1], extras_of))

    def stash(self) -> None:
        """Gives the FutureMap the states that wait, in the order of their launches."""
        waiting, self._states = self._states, []
        for states in waiting:
            self._future_map.stash_extras(states.rows_B, states.extras_of(states.hidden_BE), states.owners_B)

    def write(self, draft: Draft, kv: PagedKv) -> None:
        """Writes the KV of all that wait, and stashes their states."""
        self.stash()
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
