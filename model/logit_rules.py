"""What requests change in their logits before a token is drawn: allowed tokens, bad words, biases, penalties.

In this order, as vLLM has it: a token outside the allowed ones and the last token of a bad word get -inf, the bias is
added, and penalties follow. Repetition (Keskar et al. 2019) divides a positive logit by the penalty and multiplies a
negative one, if the token is in the prompt or the outputs. Then the frequency penalty is subtracted for each time that
the token is in the outputs, and the presence penalty once.
Shapes: L rows of logits, N of them with rules, T tokens of the longest context, V vocabulary, E biases, A allowed
tokens, M bad words of K tokens.
"""

from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NO_ID: Final = -1  # pads lists of ids
_NEG_INF: Final = float("-inf")


class RuleColumns(NamedTuple):
    """The rules of N rows, on the device. Lists of ids are padded with NO_ID. None: no row has such a rule."""

    rows_N: Tensor  # int64, indices into L
    held_N: Tensor  # int64, the rows that hold their contexts; see Histories
    num_prompt_N: Tensor  # int64: tokens of the prompt, which come first
    bias_ids_NE: Tensor | None  # int64
    bias_NE: Tensor | None  # float32
    allowed_NA: Tensor | None  # int64; a row without ids may draw all
    words_NMK: Tensor | None  # int64; shorter words are padded on the left
    frequency_N: Tensor | None  # float32, as the two others: all are there, or none
    presence_N: Tensor | None
    repetition_N: Tensor | None
    width: int  # T

    @property
    def reads_context(self) -> bool:
        """Whether any rule depends on the tokens before."""
        return self.words_NMK is not None or self.frequency_N is not None


def apply_rules(logits_LV: Tensor, position_L: Tensor, rules: RuleColumns, history_NT: Tensor | None) -> Tensor:
    """A copy of float32 logits with the rules applied to their rows.

    `history_NT` int64: the contexts, whose first `position_L` tokens count. None: no rule reads them.
    """
    # A last column takes what padding would change.
    logits_NV = F.pad(logits_LV.index_select(0, rules.rows_N), (0, 1))
    nowhere = logits_NV.shape[1] - 1

    if rules.allowed_NA is not None:
        logits_NV = _only_allowed(logits_NV, rules.allowed_NA, nowhere)
    if history_NT is not None:
        at_T = torch.arange(history_NT.shape[1], device=history_NT.device)
        is_known_NT = at_T < position_L.index_select(0, rules.rows_N)[:, None]
        is_output_NT = is_known_NT & (at_T >= rules.num_prompt_N[:, None])
        if rules.words_NMK is not None:
            _ban_words(logits_NV, rules.words_NMK, history_NT.where(is_output_NT, NO_ID), is_known_NT, nowhere)
    if rules.bias_ids_NE is not None and rules.bias_NE is not None:
        logits_NV.scatter_add_(1, _or(rules.bias_ids_NE, nowhere), rules.bias_NE)
    if history_NT is not None and rules.frequency_N is not None:
        known_NT, outputs_NT = (history_NT.where(mask_NT, nowhere) for mask_NT in (is_known_NT, is_output_NT))
        logits_NV = _penalised(logits_NV, rules, known_NT, outputs_NT)
    return logits_LV.index_copy(0, rules.rows_N, logits_NV[:, :nowhere])


def _only_allowed(logits_NV: Tensor, allowed_NA: Tensor, nowhere: int) -> Tensor:
    """-inf for other tokens, in rows that have a list."""
    is_allowed_NV = torch.zeros_like(logits_NV, dtype=torch.bool)
    is_allowed_NV.scatter_(1, _or(allowed_NA, nowhere), True)
    is_allowed_NV |= (allowed_NA == NO_ID).all(1, keepdim=True)
    return logits_NV.masked_fill_(~is_allowed_NV, _NEG_INF)


def _ban_words(logits_NV: Tensor, words_NMK: Tensor, outputs_NT: Tensor, is_known_NT: Tensor, nowhere: int) -> None:
    """-inf for the last token of each word whose other tokens are the newest outputs."""
    num_tokens = words_NMK.shape[2]
    ends_N = is_known_NT.sum(1)
    back_K = torch.arange(1 - num_tokens, 0, device=ends_N.device)
    at_NK = ends_N[:, None] + back_K
    # Behind the outputs' beginning there is no token, and none equals it.
    newest_NK = outputs_NT.gather(1, at_NK.clamp(min=0)).where(at_NK >= 0, NO_ID)
    beginning_NMK = words_NMK[:, :, :-1]
    fits_NM = ((beginning_NMK == NO_ID) | (beginning_NMK == newest_NK[:, None])).all(2)
    ids_NM = words_NMK[:, :, -1].where(fits_NM, NO_ID)
    logits_NV.scatter_(1, _or(ids_NM, nowhere), _NEG_INF)


def _penalised(logits_NV: Tensor, rules: RuleColumns, known_NT: Tensor, outputs_NT: Tensor) -> Tensor:
    """With the three penalties. Places that do not count name the last column."""
    assert rules.frequency_N is not None and rules.presence_N is not None and rules.repetition_N is not None
    is_known_NV = torch.zeros_like(logits_NV, dtype=torch.bool).scatter_(1, known_NT, True)
    counts_NV = torch.zeros_like(logits_NV).scatter_add_(
        1, outputs_NT, torch.ones_like(outputs_NT, dtype=torch.float32)
    )
    repetition_N1 = rules.repetition_N[:, None]
    repeated_NV = torch.where(logits_NV > 0, logits_NV / repetition_N1, logits_NV * repetition_N1)
    logits_NV = torch.where(is_known_NV, repeated_NV, logits_NV)
    return logits_NV - rules.frequency_N[:, None] * counts_NV - rules.presence_N[:, None] * (counts_NV > 0)


def _or(ids: Tensor, nowhere: int) -> Tensor:
    """The ids, and `nowhere` for padding."""
    return ids.where(ids != NO_ID, nowhere)
