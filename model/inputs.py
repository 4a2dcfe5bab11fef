"""The input of one forward. The scheduler builds it, runners read it.

Shapes: T tokens, B requests, D decodes, P pages of the longest context in the batch, L rows of wanted logits. Each may
be 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from protocol.messages_group import StepShape

TREE_SLOTS: Final = 64  # slots that a tree mask has a bit for


@dataclass(frozen=True)
class ModelInput:
    """One forward. B requests = E extends (a chunk of a prompt each) first, then D decodes (one token each).

    The T tokens are flattened in that order. Tensors are int64 on the model's device. Tuples and integers are on the
    host, so nothing is read back from the device. A slot is page * page_size + offset.

    Decodes may be nodes of trees. Such a decode does not see its whole context. It sees slot s if s is less than
    `tree_starts_D`, or if bit s - start of `tree_bits_D` is set. It sees no slot from start + TREE_SLOTS on. Start is 1
    at least, and bit 63 is the sign. K and V of a slot that it does not see may hold anything, also NaN.
    """

    input_ids_T: Tensor  # already resolved: never negative
    positions_T: Tensor
    slots_T: Tensor  # where each token's K and V are written
    page_table_BP: Tensor  # page numbers, padded with page 0
    seq_lens_B: Tensor  # context length including this step's tokens
    extend_lens: tuple[int, ...]  # E entries: tokens of each extend in this launch
    extend_seq_lens: tuple[int, ...]  # E entries: context length including this chunk
    num_decodes: int
    max_decode_seq_len: int  # host upper bound of the decodes' seq_lens; 0 without decodes
    logit_indices_L: Tensor  # into T; entries may repeat
    tree_starts_D: Tensor | None = None  # both, or neither if every decode sees its whole context
    tree_bits_D: Tensor | None = None
    step: StepShape | None = None  # of all ranks; None: outside of launches, or a draft's own

    @property
    def tree_mask(self) -> tuple[Tensor, Tensor] | None:
        """The tree mask, contiguous: starts and bits."""
        if self.tree_starts_D is None or self.tree_bits_D is None:
            return None
        return self.tree_starts_D.contiguous(), self.tree_bits_D.contiguous()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors, by their fields."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "ModelInput":
        """The same input with `change` applied to every tensor."""
        changed: dict[str, Any] = {name: change(value) for name, value in self.tensors.items()}
        return replace(self, **changed)


@dataclass(frozen=True)
class ChainInput:
    """S decodes of each of B rows, one behind the other. Each step's columns lie together. See ModelInput."""

    positions_SB: Tensor
    slots_SB: Tensor
    seq_lens_SB: Tensor
    page_table_BP: Tensor
    longest: int  # host upper bound of the lengths
    indices_B: Tensor  # 0, 1, ...

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Its tensors."""
        return self.positions_SB, self.slots_SB, self.seq_lens_SB, self.page_table_BP, self.indices_B

    def step(self, index: int, ids_B: Tensor) -> ModelInput:
        """Step `index`, which reads these tokens."""
        return self._decodes(ids_B, *(column_SB[index] for column_SB in self.tensors[:3]))

    @property
    def in_one_call(self) -> ModelInput:
        """All steps, step after step, with the page table of one: for C code that goes through the steps. It has no
        ids."""
        return self._decodes(self.indices_B, *(column_SB.flatten() for column_SB in self.tensors[:3]))

    def _decodes(self, ids: Tensor, positions: Tensor, slots: Tensor, seq_lens: Tensor) -> ModelInput:
        return ModelInput(
            input_ids_T=ids,
            positions_T=positions,
            slots_T=slots,
            page_table_BP=self.page_table_BP,
            seq_lens_B=seq_lens,
            extend_lens=(),
            extend_seq_lens=(),
            num_decodes=seq_lens.shape[0],
            max_decode_seq_len=self.longest,
            logit_indices_L=self.indices_B,
        )


def padding(
    num_tokens: int, num_pages: int, page_size: int, device: torch.device, *, trees: bool = False
) -> ModelInput:
    """Decodes that read and write page 0 only, one token each. With `trees` they have a tree mask."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    return ModelInput(
        input_ids_T=zeros(num_tokens),
        positions_T=zeros(num_tokens),
        slots_T=zeros(num_tokens),
        page_table_BP=zeros(num_tokens, num_pages),
        seq_lens_B=zeros(num_tokens) + 1,
        extend_lens=(),
        extend_seq_lens=(),
        num_decodes=num_tokens,
        max_decode_seq_len=num_pages * page_size,
        logit_indices_L=torch.arange(num_tokens, device=device),
        tree_starts_D=zeros(num_tokens) + 1 if trees else None,
        tree_bits_D=zeros(num_tokens) if trees else None,
    )


def is_visible(slots: Tensor, starts: Tensor, bits: Tensor) -> Tensor:
    """Whether a decode with this tree mask sees `slots` of its context, bool. Shapes are broadcast."""
    behind = slots - starts
    has_bit = (bits >> behind.clamp(0, TREE_SLOTS - 1)) & 1 == 1
    return (behind < 0) | ((behind < TREE_SLOTS) & has_bit)


def int64_column(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """The values as an int64 tensor on `device`. The host does not wait for the copy."""
    # torch.tensor takes three times as long.
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device, non_blocking=True)
