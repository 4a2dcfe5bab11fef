"""Sampling parameters of a batch, as device columns, and the rows that use top-k, top-p, min-p or min_tokens.

They are rebuilt when a request joins or leaves the batch, not at every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.sampler import Banned, SamplingInput
from scheduler.req import Req

_NO_ID = -1  # bans nothing
_MAX_ID = 2**31  # no vocabulary is larger


@dataclass(frozen=True)
class AskingRows:
    """The rows that use each filter. The host knows them, so the sampler need not search for them on the device."""

    all_greedy: bool
    top_k_N: Tensor | None  # int64 rows on the device; None when no row uses the filter
    top_p_N: Tensor | None
    min_p_N: Tensor | None

    @staticmethod
    def of(reqs: Sequence[Req], device: torch.device) -> "AskingRows":
        """The rows of `reqs`, in their order."""
        params = [req.sampling for req in reqs]

        def rows(asks: list[bool]) -> Tensor | None:
            return _int64([row for row, is_asking in enumerate(asks) if is_asking], device) if any(asks) else None

        return AskingRows(
            all_greedy=all(p.temperature == 0 for p in params),
            top_k_N=rows([p.top_k > 0 for p in params]),
            top_p_N=rows([p.top_p < 1 for p in params]),
            min_p_N=rows([p.min_p > 0 for p in params]),
        )


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

        lists: dict[int, int] = {}  # id of a SamplingParams -> index of its list
        found: list[list[int]] = []
        for row in rows:
            params = reqs[row].sampling
            if id(params) not in lists:
                lists[id(params)] = len(found)
                found.append([token for token in params.ending_ids if 0 <= token < _MAX_ID])

        longest = max(map(len, found))
        filled = [ids + [_NO_ID] * (longest - len(ids)) for ids in found]
        ids_NE = _int64(filled, device).view(len(found), longest)
        which_N = _int64([lists[id(reqs[row].sampling)] for row in rows], device)
        until = [reqs[row].prompt_len - reqs[row].num_replayed + reqs[row].sampling.min_tokens for row in rows]
        return Endings(
            tuple(rows), Banned(_int64(rows, device), ids_NE.index_select(0, which_N), _int64(until, device))
        )

    def take(self, keep: Sequence[int]) -> "Endings":
        """Endings of the rows `keep`."""
        if self.banned is None:
            return self
        place_of = {row: place for place, row in enumerate(self.rows)}
        kept = [(row, place_of[old]) for row, old in enumerate(keep) if old in place_of]
        if not kept:
            return Endings((), None)
        device = self.banned.rows_N.device
        index_N = _int64([place for _, place in kept], device)
        rows = tuple(row for row, _ in kept)
        ids_NE, until_N = self.banned.ids_NE.index_select(0, index_N), self.banned.until_N.index_select(0, index_N)
        return Endings(rows, Banned(_int64(rows, device), ids_NE, until_N))

    def concat(self, other: "Endings", num_rows: int) -> "Endings":
        """Endings of this batch of `num_rows` rows followed by the other's rows."""
        if other.banned is None:
            return self
        rows = self.rows + tuple(row + num_rows for row in other.rows)
        others = Banned(other.banned.rows_N + num_rows, other.banned.ids_NE, other.banned.until_N)
        if self.banned is None:
            return Endings(rows, others)

        mine = self.banned
        width = max(mine.ids_NE.shape[1], others.ids_NE.shape[1])
        ids = [F.pad(each.ids_NE, (0, width - each.ids_NE.shape[1]), value=_NO_ID) for each in (mine, others)]
        banned = Banned(
            torch.cat((mine.rows_N, others.rows_N)),
            torch.cat(ids),
            torch.cat((mine.until_N, others.until_N)),
        )
        return Endings(rows, banned)

    def for_launch(self, reqs: Sequence[Req]) -> Banned | None:
        """The bans of the next launch; None once every row is past min_tokens."""
        return self.banned if any(reqs[row].bans_endings for row in self.rows) else None


@dataclass(frozen=True)
class SamplingColumns:
    """B rows. Tensors are replaced, never written in place."""

    asking: AskingRows
    endings: Endings
    temperature_B: Tensor
    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor
    seed_B: Tensor
    choice_B: Tensor

    @staticmethod
    def of(reqs: Sequence[Req], device: torch.device) -> "SamplingColumns":
        """Columns for `reqs`, in their order."""
        params = [req.sampling for req in reqs]

        def column(values: list[float] | list[int], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

        return SamplingColumns(
            asking=AskingRows.of(reqs, device),
            endings=Endings.of(reqs, device),
            temperature_B=column([p.temperature for p in params], torch.float32),
            top_k_B=column([p.top_k for p in params], torch.int64),
            top_p_B=column([p.top_p for p in params], torch.float32),
            min_p_B=column([p.min_p for p in params], torch.float32),
            seed_B=column([_as_int64(p.seed) for p in params], torch.int64),
            choice_B=column([req.choice for req in reqs], torch.int64),
        )

    def _columns(self) -> tuple[Tensor, ...]:
        return (self.temperature_B, self.top_k_B, self.top_p_B, self.min_p_B, self.seed_B, self.choice_B)

    def take(self, keep: Sequence[int], reqs: Sequence[Req]) -> "SamplingColumns":
        """The rows `keep`, whose requests are `reqs`."""
        device = self.seed_B.device
        keep_N = _int64(keep, device)
        columns = (column.index_select(0, keep_N) for column in self._columns())
        return SamplingColumns(AskingRows.of(reqs, device), self.endings.take(keep), *columns)

    def concat(self, other: "SamplingColumns", reqs: Sequence[Req]) -> "SamplingColumns":
        """These rows, then the other's; `reqs` are the requests of both."""
        columns = (torch.cat(pair) for pair in zip(self._columns(), other._columns(), strict=True))
        endings = self.endings.concat(other.endings, self.seed_B.shape[0])
        return SamplingColumns(AskingRows.of(reqs, self.seed_B.device), endings, *columns)

    def input(self, reqs: Sequence[Req], position_B: Tensor) -> SamplingInput:
        """The sampler's input to draw the token at `position_B` of each row. `reqs` are the rows' requests."""
        return SamplingInput(
            temperature_L=self.temperature_B,
            top_k_L=self.top_k_B,
            top_p_L=self.top_p_B,
            min_p_L=self.min_p_B,
            seed_L=self.seed_B,
            choice_L=self.choice_B,
            position_L=position_B,
            all_greedy=self.asking.all_greedy,
            top_k_N=self.asking.top_k_N,
            top_p_N=self.asking.top_p_N,
            min_p_N=self.asking.min_p_N,
            banned=self.endings.for_launch(reqs),
        )


def _int64(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)


def _as_int64(seed: int) -> int:
    """A 64-bit seed as the signed integer with the same bits."""
    bits = seed & (2**64 - 1)
    return bits - 2**64 if bits >= 2**63 else bits
