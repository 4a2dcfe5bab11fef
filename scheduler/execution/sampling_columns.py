"""How the rows of a batch are sampled, as columns on the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model.inputs import TREE_SLOTS, int64_column
from model.logit_rules import NO_ID, RuleColumns
from model.logprobs import LogprobRows
from model.sampler import signed
from model.sampling_input import AskingRows, Banned, ParamColumns, SamplingInput
from scheduler.execution.histories import width_for
from scheduler.execution.page_table import IntArray
from scheduler.plan import Draw

_MAX_ID = 2**31  # no vocabulary is larger


@dataclass(frozen=True)
class SamplingColumns:
    """The parameters of B rows, which are `draws`. Tensors are replaced, never written in place."""

    draws: Sequence[Draw]
    params: ParamColumns
    endings: Sequence[Tensor | None]  # by row, on the host: what it may not draw before min_tokens; None: it draws all

    @staticmethod
    def of(draws: Sequence[Draw], device: torch.device) -> "SamplingColumns":
        """Columns for `draws`, in their order."""
        sampling = [draw.sampling for draw in draws]

        def column(values: list[float]) -> Tensor:
            return torch.from_numpy(np.array(values, dtype=np.float32)).to(device, non_blocking=True)

        params = ParamColumns(
            temperature_L=column([params.temperature for params in sampling]),
            top_k_L=int64_column([params.top_k for params in sampling], device),
            top_p_L=column([params.top_p for params in sampling]),
            min_p_L=column([params.min_p for params in sampling]),
            seed_L=int64_column([signed(params.seed) for params in sampling], device),
            choice_L=int64_column([draw.choice for draw in draws], device),
        )
        return SamplingColumns(draws, params, _endings_of(draws))

    @cached_property
    def asking(self) -> AskingRows:
        """The indices of the rows that use each mask. Made when a launch first needs them."""
        params, device = [draw.sampling for draw in self.draws], self.params.seed_L.device

        def rows(asks: list[bool]) -> Tensor | None:
            return int64_column([row for row, is_asking in enumerate(asks) if is_asking], device) if any(asks) else None

        return AskingRows(
            rows([p.top_k > 0 for p in params]),
            rows([p.top_p < 1 for p in params]),
            rows([p.min_p > 0 for p in params]),
            all_greedy=all(p.temperature == 0 for p in params),
        )

    @cached_property
    def bans(self) -> tuple[Banned | None, Sequence[tuple[int, int]]]:
        """The bans of endings, and (row, until) of each: a context of fewer than `until` tokens may not end."""
        ids_by_row = {row: ids for row, ids in enumerate(self.endings) if ids is not None}
        if not ids_by_row:
            return None, ()
        device, until = self.params.seed_L.device, [(row, self.draws[row].until) for row in ids_by_row]
        ids_NE = pad_sequence(list(ids_by_row.values()), batch_first=True, padding_value=NO_ID)
        rows_N, until_N = int64_column(until, device).unbind(1)
        return Banned(rows_N, ids_NE.to(device, non_blocking=True), until_N), until

    @cached_property
    def rules(self) -> RuleColumns | None:
        """The columns of logit rules. Their width is still to come."""
        return rule_columns(self.draws, self.params.seed_L.device)

    @cached_property
    def asks_logprobs(self) -> bool:
        """Whether any row asks for log-probabilities."""
        return any(draw.sampling.logprobs is not None for draw in self.draws)

    @cached_property
    def logprobs(self) -> LogprobRows | None:
        """The rows that ask for log-probabilities. None: no row does."""
        asking = {row: asked for row, draw in enumerate(self.draws) if (asked := draw.sampling.logprobs) is not None}
        if not asking:
            return None
        device, processed_N = self.params.seed_L.device, None
        if any(asked.processed for asked in asking.values()):
            flags = np.array([asked.processed for asked in asking.values()], dtype=np.bool_)
            processed_N = torch.from_numpy(flags).to(device, non_blocking=True)
        num_top = max(asked.num_top for asked in asking.values())
        return LogprobRows(tuple(asking), int64_column(list(asking), device), processed_N, num_top)

    def take(self, keep: Sequence[int]) -> "SamplingColumns":
        """The rows `keep`."""
        keep_N = int64_column(keep, self.params.seed_L.device)
        params = ParamColumns(*(column.index_select(0, keep_N) for column in self.params))
        return SamplingColumns([self.draws[row] for row in keep], params, [self.endings[row] for row in keep])

    def concat(self, other: "SamplingColumns") -> "SamplingColumns":
        """These rows, then the other's."""
        params = ParamColumns(*map(torch.cat, zip(self.params, other.params, strict=True)))
        return SamplingColumns([*self.draws, *other.draws], params, [*self.endings, *other.endings])

    def input(self, seq_lens_B: Tensor, seq_lens: IntArray) -> SamplingInput:
        """The sampler's input to draw the token after contexts of these lengths, on the device and on the host."""
        banned, until = self.bans
        is_bound = any(seq_lens[row] < length for row, length in until)
        rules = self.rules
        if rules is not None and rules.reads_context:
            longest = max([seq_lens[row] for row, draw in enumerate(self.draws) if draw.sampling.rules is not None])
            rules = rules._replace(width=width_for(int(longest), TREE_SLOTS))
        return SamplingInput(self.params, self.asking, seq_lens_B, banned if is_bound else None, rules, self.logprobs)


def _endings_of(draws: Sequence[Draw]) -> list[Tensor | None]:
    """The endings of the rows with min_tokens. Choices that share their parameters share one list."""
    lists: dict[int, Tensor] = {}
    for params in (draw.sampling for draw in draws):
        if params.min_tokens and params.ending_ids and id(params) not in lists:
            ids = [token for token in params.ending_ids if 0 <= token < _MAX_ID]
            lists[id(params)] = torch.tensor(ids, dtype=torch.int64)
    return [lists.get(id(draw.sampling)) for draw in draws]


def rule_columns(draws: Sequence[Draw], device: torch.device) -> RuleColumns | None:
    """The columns of the draws that have rules; None if none has."""
    asking = [(row, draw, rules) for row, draw in enumerate(draws) if (rules := draw.sampling.rules) is not None]
    if not asking:
        return None

    def ids(lists: list[Sequence[int]]) -> Tensor | None:
        if not any(lists):
            return None
        columns = [torch.tensor(numbers, dtype=torch.int64) for numbers in lists]
        return pad_sequence(columns, batch_first=True, padding_value=NO_ID).to(device, non_blocking=True)

    def numbers(values: list[Sequence[float]]) -> Tensor:
        columns = [torch.tensor(numbers, dtype=torch.float32) for numbers in values]
        return pad_sequence(columns, batch_first=True).to(device, non_blocking=True)

    every, penalises = [rules for _, _, rules in asking], any(rules.penalises for _, _, rules in asking)
    bias_ids_NE = ids([[token for token, _ in rules.logit_bias] for rules in every])
    penalties_3N = numbers(
        [
            [rules.frequency_penalty for rules in every],
            [rules.presence_penalty for rules in every],
            [rules.repetition_penalty for rules in every],
        ]
    )
    return RuleColumns(
        rows_N=int64_column([row for row, _, _ in asking], device),
        held_N=int64_column([draw.row for _, draw, _ in asking], device),
        num_prompt_N=int64_column([draw.num_prompt for _, draw, _ in asking], device),
        bias_ids_NE=bias_ids_NE,
        bias_NE=None if bias_ids_NE is None else numbers([[bias for _, bias in rules.logit_bias] for rules in every]),
        allowed_NA=ids([rules.allowed_token_ids for rules in every]),
        words_NMK=_words([rules.bad_words for rules in every], device),
        frequency_N=penalties_3N[0] if penalises else None,
        presence_N=penalties_3N[1] if penalises else None,
        repetition_N=penalties_3N[2] if penalises else None,
        width=0,
    )


def _words(lists: Sequence[Sequence[Sequence[int]]], device: torch.device) -> Tensor | None:
    """(N, M, K) bad words, padded with NO_ID on the left; None without any."""
    most, longest = max(map(len, lists)), max((len(word) for words in lists for word in words), default=0)
    if not most:
        return None
    padded = np.full((len(lists), most, longest), NO_ID, dtype=np.int64)
    for row, words in enumerate(lists):
        for index, word in enumerate(words):
            padded[row, index, longest - len(word) :] = word
    return torch.from_numpy(padded).to(device, non_blocking=True)
