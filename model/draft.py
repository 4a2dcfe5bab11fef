"""The interface of a draft: a small model that proposes tokens from the features of the target, which then checks them.

h_i is the target's feature at position i. Slot i of the draft's KV belongs to the pair (token x_{i+1}, h_i). The
forward of that slot gives a hidden state that stands for h_{i+1}, and logits of the token x_{i+2}.
Method: Li et al. 2024 (EAGLE), 2025 (EAGLE-3).

With J layers each drafts another token. Slot i of layer j (from 0) belongs to the pair
(token x_{i+1+j}, what layer j - 1 gave at slot i), and its logits are of x_{i+j+2}. So with m committed tokens every
layer proposes at slot m - 1: layer 0 reads the last known token, layer j the proposal of layer j - 1. KV of layer j is
final up to slot m - 1 - j. The slots behind it depend on proposals. They are written again when their tokens are known,
from the target's features at the last J - 1 committed positions.
Shapes: T tokens, L wanted rows, F numbers of a target's feature, E of the draft's hidden state, V the target's
vocabulary.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from model.inputs import ChainInput, ModelInput
from model.paged_kv import PagedKv
from protocol.kv_layout import LayerGroup


def begins_with(draft: "Draft | None") -> int:
    """Numbers of the hidden states that a draft begins with: those of one position for each token that it looks ahead.
    0 without a draft."""
    return 0 if draft is None else draft.hidden_size * draft.group.lookahead


class Draft(Protocol):
    """A draft that belongs to one target. Its layers of KV come behind the target's, in a group of their own."""

    @property
    def num_layers(self) -> int:
        """The layers of its group."""
        ...

    @property
    def group(self) -> LayerGroup:
        """The shape of its KV. Its lookahead: how many of its layers each draft another token ahead, so that slot i of
        the j-th depends on tokens up to i + j."""
        ...

    @property
    def hidden_size(self) -> int:
        """E."""
        ...

    @property
    def hidden_dtype(self) -> torch.dtype:
        """The dtype of hidden states."""
        ...

    @property
    def vocab_size(self) -> int:
        """How many tokens it can propose."""
        ...

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's layers whose inputs, side by side, are its feature. Empty: the output of its final norm."""
        ...

    def fuse(self, features_TF: Tensor) -> Tensor:
        """Hidden states (T, E) from features of the target."""
        ...

    def run_layer(
        self,
        index: int,
        inp: ModelInput,
        hidden_TE: Tensor,
        kv: PagedKv,
        on_layer: Callable[[int], None] | None = None,
        *,
        attends: bool = True,
    ) -> Tensor:
        """Hidden states (T, E) of all T slots from layer `index` alone. Writes its K and V of these slots.

        `inp` names slots and positions as for the target; its input ids are the tokens `index` + 1 behind these
        positions. `hidden_TE` is what the layer before gave. on_layer is as in Runner.forward. Without `attends` the
        layer, which is the first one, only writes K and V: what it returns is of no use.
        """
        ...

    def likeliest(
        self, inp: ModelInput, hidden_TE: Tensor, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Of the wanted rows from the first layer: the likeliest tokens (L,) behind them, and hidden states (L, E)."""
        ...

    def chain(self, steps: ChainInput, tokens_B: Tensor, hidden_BE: Tensor, kv: PagedKv) -> Tensor:
        """(1 + S, B): `tokens_B`, what the first layer proposes as likeliest behind them, what it proposes behind that,
        and so on. A token below 0 is none; what follows it is of no use."""
        ...

    def logits(self, hidden_LE: Tensor) -> Tensor:
        """Logits (L, V) float32 of the token that hidden states of any layer propose. They are -inf at tokens that the
        draft does not know."""
        ...


def first_layer(
    draft: Draft, inp: ModelInput, hidden_TE: Tensor, kv: PagedKv, on_layer: Callable[[int], None] | None = None
) -> tuple[Tensor, Tensor]:
    """Logits (L, V) and hidden states (L, E) of the wanted rows from the draft's first layer. See Draft.run_layer."""
    wanted_LE = draft.run_layer(0, inp, hidden_TE, kv, on_layer).index_select(0, inp.logit_indices_L)
    return draft.logits(wanted_LE), wanted_LE


def likeliest_by_logits(
    draft: Draft, inp: ModelInput, hidden_TE: Tensor, kv: PagedKv, on_layer: Callable[[int], None] | None = None
) -> tuple[Tensor, Tensor]:
    """See Draft.likeliest."""
    logits_LV, hidden_LE = first_layer(draft, inp, hidden_TE, kv, on_layer)
    return logits_LV.argmax(-1), hidden_LE


def chain_by_steps(draft: Draft, steps: ChainInput, tokens_B: Tensor, hidden_BE: Tensor, kv: PagedKv) -> Tensor:
    """See Draft.chain. One forward for each step."""
    proposed = [tokens_B]
    tokens_B = tokens_B.clamp(min=0)
    for index in range(steps.positions_SB.shape[0]):
        tokens_B, hidden_BE = likeliest_by_logits(draft, steps.step(index, tokens_B), hidden_BE, kv)
        proposed.append(tokens_B)
    return torch.stack(proposed)
