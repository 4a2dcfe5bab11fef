"""A draft of several layers, each of which drafts another token: what its layers read, one after the other.

J layers read S slots of each row. Slot i of layer j reads the token x_(i+1+j), and what layer j - 1 gave at slot i;
layer 0 reads the target's feature at i. With x_m as the last known token, layer j proposes the token x_(m+1+j) at slot
m - 1, and layer j + 1 reads it. So KV of layer j at the last j slots depends on proposals. It is written again when
their tokens are known, from features that the launch before has stashed.

A row begins with its last J slots. After a launch that has verified W tokens, the layers read these and the J - 1 slots
before them. A feature of zeros is none: its slot is left as it is.
Shapes: B rows, S slots of each, W tokens to verify, P tokens of prompts, T = P + B * S, D prompts that end, E hidden,
X = S + J - 1 tokens that the layers read of a row, K proposals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from model.draft import Draft
from model.inputs import ModelInput, int64_column
from model.paged_kv import PagedKv
from model.sampler import NOT_A_TOKEN
from scheduler.execution.future_map import DraftExtras
from scheduler.plan import Chunk


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
        at_DJ, is_there_DJ = _last(inp, ends_D, num_layers)
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


def hidden_at_ends(inp: ModelInput, ends_D: Tensor, hidden_TE: Tensor, num_layers: int) -> Tensor:
    """The features (D, J, E) of the last J positions up to `ends_D` in T; zeros before a context's beginning."""
    at_DJ, is_there_DJ = _last(inp, ends_D, num_layers)
    return hidden_TE[at_DJ].where(is_there_DJ[:, :, None], 0)


def _last(inp: ModelInput, ends_D: Tensor, num_layers: int) -> tuple[Tensor, Tensor]:
    back_J = torch.arange(1 - num_layers, 1, device=ends_D.device)
    return (ends_D[:, None] + back_J).clamp(min=0), inp.positions_T[ends_D][:, None] + back_J >= 0


@dataclass(frozen=True)
class Window:
    """Where the layers read: P tokens of chunks, then S slots of each row."""

    input: ModelInput  # its ids are still to come
    after_JP: Tensor  # the tokens that layer j reads with the chunks; 0 where they are not known yet

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        return (*self.input.tensors.values(), self.after_JP)


def after_chunks(chunks: Sequence[Chunk], num_layers: int, device: torch.device) -> Tensor:
    """(J, P): layer j reads the token j + 1 behind each token of a chunk. 0 where it is not known yet."""

    def of_layer(layer: int) -> list[int]:
        known = [((*chunk.ids, *chunk.ahead)[layer + 1 :], len(chunk.ids)) for chunk in chunks]
        return [token for ids, size in known for token in (*ids, *(0,) * size)[:size]]

    return int64_column([of_layer(layer) for layer in range(num_layers)], device)


def begin_layers(draft: Draft, kv: PagedKv, inp: ModelInput, past: Past, *, proposes: bool) -> Tensor:
    """The proposals (B, J) of rows that begin, if the launch `proposes`; `inp` has their last J slots."""
    num_layers = past.tokens_BJ.shape[1]
    window = Window(inp, past.tokens_BJ.new_empty((num_layers, 0)))
    first_B = torch.full_like(past.tokens_BJ[:, 0], num_layers - 1)
    return _read(
        draft, kv, window, past.tokens_BJ, past.hidden_BJE, past.hidden_BJE[:0, 0], first_B, None, proposes=proposes
    )


def extend_layers(
    draft: Draft,
    kv: PagedKv,
    window: Window,
    past: Past,
    drawn_BW: Tensor,
    kept_B: Tensor,
    hidden_TE: Tensor,
    on_layer: Callable[[int], None] | None,
    *,
    proposes: bool,
) -> tuple[Tensor, Past]:
    """The proposals (B, J) behind what is kept of the tokens that the target has drawn, and the rows' new past.

    `hidden_TE` are the features of P tokens of chunks and of W tokens of each row.
    """
    num_prompts, num_layers = window.after_JP.shape[1], past.tokens_BJ.shape[1]
    own_BWE = hidden_TE[num_prompts:].view(*drawn_BW.shape, hidden_TE.shape[1])
    hidden_BSE = torch.cat((past.hidden_BJE[:, 1:], own_BWE), 1)
    tokens_BS = torch.cat((past.tokens_BJ[:, 1:], drawn_BW.clamp(min=0)), 1)
    last_B = kept_B + num_layers - 1
    rest = (hidden_TE[:num_prompts], last_B, on_layer)
    proposals_BJ = _read(draft, kv, window, tokens_BS, hidden_BSE, *rest, proposes=proposes)

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
    on_layer: Callable[[int], None] | None,
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
