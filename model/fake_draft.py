"""A draft for the fake model: a wrong hidden state, token or page of draft KV costs it every proposal from there on.

H_q is the fake model's hash of the context up to position q. Each of J layers drafts another token. Slot i of layer j
holds a print of H_q with q = i + j, of the token x_{q+1}, of i, and of how many forwards of the draft lie between the
target's feature and H_q: j, where the layer reads what it should. g_i is a hash of what the slot should hold, and D_q
the sum of g_k over k < i. The target's feature at q has H_q and the D_q of all layers, computed from the target's own
KV. The forward of slot i sums the layer's slots 0..i as the page table shows them, and compares the sum with D_q + g_i.
If they are equal, it proposes the right token after 70% of the contexts. After 20% the right one is its second choice.
Otherwise it proposes wrong ones, and so does whatever goes on from its hidden state.
Shapes: T tokens, L wanted rows, N tokens of all the contexts read, X layers of the target,
E = 3 * (2 + J) numbers of a hidden state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from model.draft import chain_by_steps, likeliest_by_logits
from model.fake_hash import (
    PIECES,
    Contexts,
    contexts,
    hashed,
    joined,
    next_token,
    numbers,
    pieces,
    prints,
    write_numbers,
)
from model.inputs import ChainInput, ModelInput
from model.paged_kv import PagedKv
from model.sampler import mix, shift_right
from protocol.kv_layout import LayerGroup

RIGHT_OF_TEN: Final = 7
SECOND_OF_TEN: Final = 9  # those after RIGHT_OF_TEN: the second choice is right
OTHER_CHOICES: Final = 7  # their logits differ, so that there is an order; together they are hardly ever drawn
_CHOICE_STEP: Final = 2.0**-13
_LUCK: Final = 0x5DEECE66D  # makes the luck of a context independent of its next token


@dataclass(frozen=True)
class FakeDraft:
    """See Draft in model/draft.py. `num_target_layers` and the heads of `group` are those of its FakeRunner."""

    seed: int  # drafts of different seeds do not understand each other's KV
    vocab_size: int
    num_target_layers: int
    group: LayerGroup

    hidden_dtype: torch.dtype = torch.float32
    feature_layers: tuple[int, ...] = ()

    @property
    def num_layers(self) -> int:
        """See Draft."""
        return self.group.num_layers

    @property
    def hidden_size(self) -> int:
        """E."""
        return PIECES * (2 + self.num_layers)

    def fuse(self, features_TF: Tensor) -> Tensor:
        """The same."""
        return features_TF

    def features(self, hash_N: Tensor, running_N: Tensor, where: Contexts) -> Tensor:
        """The target's features (T, E). `hash_N` are the hashes of the tokens read, `running_N` those of contexts."""
        columns = [running_N]
        for layer in range(self.num_layers):
            slots_N = self._slot_hash(layer, running_N, hash_N.roll(-1), where.positions_N)
            columns.append(where.running(slots_N) - slots_N)  # without the last one's: the next token is not known yet
        columns.append(torch.zeros_like(hash_N))
        return pieces(*[column[where.token_T] for column in columns])

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
        """Hidden states (T, E) of all slots; see Draft.run_layer."""
        hash_T, *before, depth_T = joined(hidden_TE).unbind(-1)
        known_T, layer = inp.positions_T + index, self.num_target_layers + index
        token_hash_T = self._target_hash(inp.input_ids_T, known_T + 1)
        numbers_TW = numbers(self._print(hash_T, depth_T, token_hash_T, inp.positions_T), self._width)
        kv_layer = kv.layer(layer)
        write_numbers(kv_layer, inp.slots_T, numbers_TW)
        if on_layer is not None:
            on_layer(layer)
        if not attends:
            return hidden_TE

        # What all layers' slots add up to with this token.
        added = [self._slot_hash(number, hash_T, token_hash_T, known_T) for number in range(self.num_layers)]
        added[index] = hashed(numbers_TW, inp.positions_T, layer)
        sums = [sum_T + own_T for sum_T, own_T in zip(before, added, strict=True)]

        # Compare what the slots hold with what the hidden state says.
        where = contexts(inp, kv.layout.page_size)
        read_N = hashed(where.read(kv_layer), where.positions_N, layer)
        fits_T = (where.running(read_N)[where.token_T] == sums[index]) & (depth_T >= 0)
        return pieces(hash_T + token_hash_T, *sums, torch.where(fits_T, depth_T + 1, -1))

    def likeliest(
        self, inp: ModelInput, hidden_TE: Tensor, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """See Draft.likeliest."""
        return likeliest_by_logits(self, inp, hidden_TE, kv, on_layer)

    def chain(self, steps: ChainInput, tokens_B: Tensor, hidden_BE: Tensor, kv: PagedKv) -> Tensor:
        """See Draft.chain."""
        return chain_by_steps(self, steps, tokens_B, hidden_BE, kv)

    def logits(self, hidden_LE: Tensor) -> Tensor:
        """Logits (L, V) of the token that hidden states of any layer propose: 100 at the first choice.

        The next choices are the tokens after it. Their logits differ, also by the context.
        """
        after_L, *_, depth_L = joined(hidden_LE).unbind(-1)
        luck_L = shift_right(mix(after_L ^ _LUCK), 1)
        off_L = torch.where(luck_L % 10 < RIGHT_OF_TEN, 0, torch.where(luck_L % 10 < SECOND_OF_TEN, -1, 1))
        first_L = (next_token(after_L, self.vocab_size) + torch.where(depth_L > 0, off_L, 1)) % self.vocab_size

        logits_LV = torch.zeros(first_L.shape[0], self.vocab_size, device=first_L.device)
        others_C = torch.arange(OTHER_CHOICES, 0, -1, device=first_L.device)
        values_LC = (others_C + (luck_L[:, None] >> 40) % 4 * (OTHER_CHOICES + 1)) * _CHOICE_STEP
        logits_LV.scatter_(1, (first_L[:, None] + others_C.flip(0)) % self.vocab_size, values_LC)
        return logits_LV.scatter_(1, first_L[:, None], 100.0)

    def _target_hash(self, ids_T: Tensor, positions_T: Tensor) -> Tensor:
        """The target's numbers for each token at its position, summed over all its layers."""
        layers_X1 = torch.arange(self.num_target_layers, device=ids_T.device)[:, None]
        numbers_XTW = numbers(prints(ids_T, positions_T, layers_X1), self._width)
        total_T: Tensor = hashed(numbers_XTW, positions_T, layers_X1).sum(0)
        return total_T

    def _slot_hash(self, layer: int, hash_N: Tensor, token_hash_N: Tensor, known_N: Tensor) -> Tensor:
        """The number that a slot of draft layer `layer` adds to a context's sum if its KV is right: the layer's last
        slot when the token at `known_N` is known. 0 where a context is too short to have that slot."""
        slots_N = known_N - layer
        print_N = self._print(hash_N, torch.full_like(hash_N, layer), token_hash_N, slots_N)
        added_N = hashed(numbers(print_N, self._width), slots_N, self.num_target_layers + layer)
        return added_N.masked_fill(slots_N < 0, 0)

    def _print(self, hash_T: Tensor, depth_T: Tensor, token_hash_T: Tensor, positions_T: Tensor) -> Tensor:
        return mix(mix(mix(hash_T ^ self.seed) ^ token_hash_T) ^ depth_T) ^ positions_T

    @property
    def _width(self) -> int:
        return 2 * self.group.num_kv_heads * self.group.head_dim
