"""Sampling parameters of a batch, as device columns, and the rows that use top-k, top-p, min-p or min_tokens.

They are rebuilt when a request joins or leaves the batch, not at every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.inputs import int64_column
from model.sampler import AskingRows, Banned, ParamColumns, SamplingInput
from model.splitmix import signed
from scheduler.req import Req

_NO_ID = -1  # bans nothing
_MAX_ID = 2**31  # no vocabulary is larger


@dataclass(frozen=True)
class Endings:
    """The tokens that N rows of a batch may not draw before min_tokens. `banned` is None if there are no such rows."""

    rows: tuple[int, ...]
    banned: Banned | None

    @staticmethod
    def of(reqs: Sequence[Req], device: torch.device) -> "Endings":
        """Endings of the requests below min_tokens. Choices that share their parameters share one list."""
        rows = [row for row, req in enumerate(reqs) if req.bans_endings and req.sampling.ending_ids]
        if not rows:
            return Endings((), None)

        shared = {id(reqs[row].sampling): reqs[row].sampling for row in rows}
        found = [[token for token in each.ending_ids if 0 <= token < _MAX_ID] for each in shared.values()]
        longest = max(map(len, found))
        filled = [ids + [_NO_ID] * (longest - len(ids)) for ids in found]

        place_of = {params_id: place for place, params_id in enumerate(shared)}
        which_N = int64_column([place_of[id(reqs[row].sampling)] for row in rows], device)
        ids_NE = int64_column(filled, device).index_select(0, which_N)
        until = [reqs[row].prompt_len - reqs[row].num_replayed + reqs[row].sampling.min_tokens for row in rows]
        return Endings(tuple(rows), Banned(int64_column(rows, device), ids_NE, int64_column(until, device)))

    def take(self, keep: Sequence[int]) -> "Endings":
        """Endings of the rows `keep`."""
        if self.banned is None:
            return self
        place_of = {row: place for place, row in enumerate(self.rows)}
        kept = {row: place_of[old] for row, old in enumerate(keep) if old in place_of}
        if not kept:
            return Endings((), None)
        device = self.banned.rows_N.device
        index_N = int64_column(list(kept.values()), device)
        ids_NE, until_N = self.banned.ids_NE.index_select(0, index_N), self.banned.until_N.index_select(0, index_N)
        return Endings(tuple(kept), Banned(int64_column(list(kept), device), ids_NE, until_N))

    def concat(self, other: "Endings", num_rows: int) -> "Endings":
        """Endings of this batch of `num_rows` rows followed by the other's rows."""
        if other.banned is None:
            return self
        rows = self.rows + tuple(row + num_rows for row in other.rows)
        others = other.banned._replace(rows_N=other.banned.rows_N + num_rows)
        if self.banned is None:
            return Endings(rows, others)

        width = max(self.banned.ids_NE.shape[1], others.ids_NE.shape[1])
        both = [
            each._replace(ids_NE=F.pad(each.ids_NE, (0, width - each.ids_NE.shape[1]), value=_NO_ID))
            for each in (self.banned, others)
        ]
        return Endings(rows, Banned(*map(torch.cat, zip(*both, strict=True))))

    def for_launch(self, reqs: Sequence[Req]) -> Banned | None:
        """The bans of the next launch; None once every row is past min_tokens."""
        return self.banned if any(reqs[row].bans_endings for row in self.rows) else None


@dataclass(frozen=True)
class SamplingColumns:
    """B rows. Tensors are replaced, never written in place."""

    params: ParamColumns
    asking: AskingRows
    endings: Endings

    @staticmethod
    def of(reqs: Sequence[Req], device: torch.device) -> "SamplingColumns":
        """Columns for `reqs`, in their order."""
        sampling = [req.sampling for req in reqs]

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32).to(device, non_blocking=True)

        params = ParamColumns(
            temperature_L=column([each.temperature for each in sampling]),
            top_k_L=int64_column([each.top_k for each in sampling], device),
            top_p_L=column([each.top_p for each in sampling]),
            min_p_L=column([each.min_p for each in sampling]),
            seed_L=int64_column([signed(each.seed) for each in sampling], device),
            choice_L=int64_column([req.choice for req in reqs], device),
        )
        return SamplingColumns(params, asking_rows(reqs, device), Endings.of(reqs, device))

    def take(self, keep: Sequence[int], reqs: Sequence[Req]) -> "SamplingColumns":
        """The rows `keep`, whose requests are `reqs`."""
        device = self.params.seed_L.device
        keep_N = int64_column(keep, device)
        params = ParamColumns(*(column.index_select(0, keep_N) for column in self.params))
        return SamplingColumns(params, asking_rows(reqs, device), self.endings.take(keep))

    def concat(self, other: "SamplingColumns", reqs: Sequence[Req]) -> "SamplingColumns":
        """These rows, then the other's; `reqs` are the requests of both."""
        params = ParamColumns(*map(torch.cat, zip(self.params, other.params, strict=True)))
        num_rows, device = self.params.seed_L.shape[0], self.params.seed_L.device
        return SamplingColumns(params, asking_rows(reqs, device), self.endings.concat(other.endings, num_rows))

    def input(self, reqs: Sequence[Req], position_B: Tensor) -> SamplingInput:
        """The sampler's input to draw the token at `position_B` of each row. `reqs` are the rows' requests."""
        return SamplingInput(self.params, self.asking, position_B, self.endings.for_launch(reqs))


def asking_rows(reqs: Sequence[Req], device: torch.device) -> AskingRows:
    """The rows of `reqs`, in their order, that use each mask."""
    params = [req.sampling for req in reqs]

    def rows(asks: list[bool]) -> Tensor | None:
        return int64_column([row for row, is_asking in enumerate(asks) if is_asking], device) if any(asks) else None

    return AskingRows(
        rows([p.top_k > 0 for p in params]),
        rows([p.top_p < 1 for p in params]),
        rows([p.min_p > 0 for p in params]),
        all_greedy=all(p.temperature == 0 for p in params),
    )
