"""Sampling parameters of a batch, as device columns, and the rows that use top-k, top-p, min-p or min_tokens.

They are rebuilt when a row joins or leaves the batch, not at every step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from model.inputs import int64_column
from model.sampler import AskingRows, Banned, ParamColumns, SamplingInput
from model.splitmix import signed
from scheduler.page_table import IntArray
from scheduler.plan import Draw

_NO_ID = -1  # bans nothing
_MAX_ID = 2**31  # no vocabulary is larger


@dataclass(frozen=True)
class Endings:
    """The tokens that some rows of a batch may not draw before min_tokens. `banned` is None if there are no such rows.

    `until` is by row: a context of fewer tokens may not end.
    """

    until: Mapping[int, int]
    banned: Banned | None

    @staticmethod
    def of(draws: Sequence[Draw], device: torch.device) -> "Endings":
        """Endings of the rows with min_tokens. Choices that share their parameters share one list."""
        rows = [row for row, draw in enumerate(draws) if draw.sampling.min_tokens and draw.sampling.ending_ids]
        if not rows:
            return Endings({}, None)

        shared = {id(draws[row].sampling): draws[row].sampling for row in rows}
        found = [[token for token in each.ending_ids if 0 <= token < _MAX_ID] for each in shared.values()]
        longest = max(map(len, found))
        filled = [ids + [_NO_ID] * (longest - len(ids)) for ids in found]

        place_of = {params_id: place for place, params_id in enumerate(shared)}
        which_N = int64_column([place_of[id(draws[row].sampling)] for row in rows], device)
        ids_NE = int64_column(filled, device).index_select(0, which_N)
        until = {row: draws[row].until for row in rows}
        return Endings(until, Banned(int64_column(rows, device), ids_NE, int64_column(list(until.values()), device)))

    def take(self, keep: Sequence[int]) -> "Endings":
        """Endings of the rows `keep`."""
        if self.banned is None:
            return self
        place_of = {row: place for place, row in enumerate(self.until)}
        kept = {row: place_of[old] for row, old in enumerate(keep) if old in place_of}
        if not kept:
            return Endings({}, None)
        device = self.banned.rows_N.device
        index_N = int64_column(list(kept.values()), device)
        ids_NE, until_N = self.banned.ids_NE.index_select(0, index_N), self.banned.until_N.index_select(0, index_N)
        until = {row: self.until[keep[row]] for row in kept}
        return Endings(until, Banned(int64_column(list(kept), device), ids_NE, until_N))

    def concat(self, other: "Endings", num_rows: int) -> "Endings":
        """Endings of this batch of `num_rows` rows followed by the other's rows."""
        if other.banned is None:
            return self
        until = {**self.until, **{row + num_rows: length for row, length in other.until.items()}}
        others = other.banned._replace(rows_N=other.banned.rows_N + num_rows)
        if self.banned is None:
            return Endings(until, others)

        width = max(self.banned.ids_NE.shape[1], others.ids_NE.shape[1])
        both = [
            each._replace(ids_NE=F.pad(each.ids_NE, (0, width - each.ids_NE.shape[1]), value=_NO_ID))
            for each in (self.banned, others)
        ]
        return Endings(until, Banned(*map(torch.cat, zip(*both, strict=True))))

    def for_launch(self, seq_lens: IntArray) -> Banned | None:
        """The bans of a launch with contexts of these lengths; None once no row is banned any more."""
        return self.banned if any(seq_lens[row] < length for row, length in self.until.items()) else None


@dataclass(frozen=True)
class SamplingColumns:
    """The parameters of B rows, which are `draws`. Tensors are replaced, never written in place."""

    draws: Sequence[Draw]
    params: ParamColumns
    endings: Endings

    @staticmethod
    def of(draws: Sequence[Draw], device: torch.device) -> "SamplingColumns":
        """Columns for `draws`, in their order."""
        sampling = [draw.sampling for draw in draws]

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32).to(device, non_blocking=True)

        params = ParamColumns(
            temperature_L=column([each.temperature for each in sampling]),
            top_k_L=int64_column([each.top_k for each in sampling], device),
            top_p_L=column([each.top_p for each in sampling]),
            min_p_L=column([each.min_p for each in sampling]),
            seed_L=int64_column([signed(each.seed) for each in sampling], device),
            choice_L=int64_column([draw.choice for draw in draws], device),
        )
        return SamplingColumns(draws, params, Endings.of(draws, device))

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

    def take(self, keep: Sequence[int]) -> "SamplingColumns":
        """The rows `keep`."""
        keep_N = int64_column(keep, self.params.seed_L.device)
        params = ParamColumns(*(column.index_select(0, keep_N) for column in self.params))
        return SamplingColumns([self.draws[index] for index in keep], params, self.endings.take(keep))

    def concat(self, other: "SamplingColumns") -> "SamplingColumns":
        """These rows, then the other's."""
        params = ParamColumns(*map(torch.cat, zip(self.params, other.params, strict=True)))
        return SamplingColumns([*self.draws, *other.draws], params, self.endings.concat(other.endings, len(self.draws)))

    def input(self, seq_lens_B: Tensor, seq_lens: IntArray) -> SamplingInput:
        """The sampler's input to draw the token after contexts of these lengths, on the device and on the host."""
        return SamplingInput(self.params, self.asking, seq_lens_B, self.endings.for_launch(seq_lens))
