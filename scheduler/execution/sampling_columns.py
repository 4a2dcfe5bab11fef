"""How the rows of a batch are sampled, as columns on the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model.inputs import int64_column
from model.sampler import AskingRows, Banned, ParamColumns, SamplingInput, signed
from scheduler.execution.page_table import IntArray
from scheduler.plan import Draw

_NO_ID = -1  # bans nothing
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
        ids_NE = pad_sequence(list(ids_by_row.values()), batch_first=True, padding_value=_NO_ID)
        rows_N, until_N = int64_column(until, device).unbind(1)
        return Banned(rows_N, ids_NE.to(device, non_blocking=True), until_N), until

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
        return SamplingInput(self.params, self.asking, seq_lens_B, banned if is_bound else None)


def _endings_of(draws: Sequence[Draw]) -> list[Tensor | None]:
    """The endings of the rows with min_tokens. Choices that share their parameters share one list."""
    lists: dict[int, Tensor] = {}
    for params in (draw.sampling for draw in draws):
        if params.min_tokens and params.ending_ids and id(params) not in lists:
            ids = [token for token in params.ending_ids if 0 <= token < _MAX_ID]
            lists[id(params)] = torch.tensor(ids, dtype=torch.int64)
    return [lists.get(id(draw.sampling)) for draw in draws]
