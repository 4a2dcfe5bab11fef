"""What the rows of a batch are sampled with, and the interface of what draws them on a device.

sampler.py and sampler_triton.py draw.
Shapes: L rows, N of them, E token ids, V vocabulary, W words of a grammar's mask.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from torch import Tensor

from model.logit_rules import RuleColumns
from model.logprobs import LogprobRows

NOT_A_TOKEN: Final = -1  # drawn from logits that are not finite
NOTHING_LEFT: Final = -3  # drawn where a grammar and the other rules together allow no token
GREEDY_BELOW: Final = 1e-30  # logits divided by a lower temperature would overflow float32


class Banned(NamedTuple):
    """Tokens that N rows may not draw yet."""

    rows_N: Tensor  # int64
    ids_NE: Tensor  # int64; ids outside the vocabulary ban nothing; shorter lists are padded with -1
    until_N: Tensor  # int64; a row's ban holds while its position is lower


class ParamColumns(NamedTuple):
    """Sampling parameters of L rows, on the model's device."""

    temperature_L: Tensor  # float32; 0: greedy
    top_k_L: Tensor  # int64; 0: off
    top_p_L: Tensor  # float32; 1: off
    min_p_L: Tensor  # float32; 0: off
    seed_L: Tensor  # int64
    choice_L: Tensor  # int64


class AskingRows(NamedTuple):
    """The rows (int64, on the device) that use each mask; None: no row does.

    The host knows them, so the sampler need not search for them on the device.
    """

    top_k_N: Tensor | None
    top_p_N: Tensor | None
    min_p_N: Tensor | None
    all_greedy: bool


class AllowedTokens(NamedTuple):
    """The only tokens that N rows may draw, because grammars rule them."""

    rows_N: Tensor  # int64
    words_NW: Tensor  # int32: bit b of word w stands for token 32 w + b; the words hold at least V bits


@dataclass(frozen=True)
class SamplingInput:
    """What L rows are sampled with. Tensors are on the model's device."""

    params: ParamColumns
    asking: AskingRows
    position_L: Tensor  # int64: tokens before the sampled one, prompt included
    banned: Banned | None
    rules: RuleColumns | None = None
    logprobs: LogprobRows | None = None  # None: no row asks for any
    allowed: AllowedTokens | None = None  # None: no grammar rules any row

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        masks = (*(self.banned or ()), *(self.rules or ()), *(self.logprobs or ()), *(self.allowed or ()))
        columns = (*self.params, *self.asking, *masks, self.position_L)
        return tuple(tensor for tensor in columns if isinstance(tensor, Tensor))


class Drawn(NamedTuple):
    """What a draw gives."""

    tokens_L: Tensor  # int64
    logits_of: Callable[[Tensor], Tensor]  # (N, V) of rows (int64, N): what their tokens were drawn from


class Draws(Protocol):
    """How the rows of a batch are drawn on a device. It changes no logits that it is given, and never waits."""

    def only_allowed(self, logits_LV: Tensor, allowed: AllowedTokens) -> Tensor:
        """A copy of float32 logits with -inf at the tokens that grammars do not allow."""
        ...

    def draw(self, logits_LV: Tensor, s: SamplingInput) -> Drawn:
        """A token for each row of float32 logits to which all rules are applied; see sample_scored of sampler.py."""
        ...


def weight_scale(vocab_size: int) -> float:
    """What the largest logit of a row weighs. Weights are integers, so their sums are exact in any order. Their total
    stays below 2^63."""
    return float(2.0 ** (62 - (vocab_size - 1).bit_length()))
