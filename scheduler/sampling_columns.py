"""Sampling parameters of the rows of a batch, as device columns kept from step to step.

What it does not know: logits, or which request a row is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.sampler import SamplingInput
from scheduler.req import Req

Banned = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class SamplingFlags:
    """What at least one row (or every row) of a batch asks for, known on the host: lets the sampler skip work."""

    all_greedy: bool
    any_top_k: bool
    any_top_p: bool
    any_min_p: bool
    any_min_tokens: bool

    @staticmethod
    def of(reqs: Sequence[Req]) -> "SamplingFlags":
        """Flags of `reqs` together."""
        params = [req.sampling for req in reqs]
        return SamplingFlags(
            all_greedy=all(p.temperature == 0 for p in params),
            any_top_k=any(p.top_k > 0 for p in params),
            any_top_p=any(p.top_p < 1 for p in params),
            any_min_p=any(p.min_p > 0 for p in params),
            any_min_tokens=any(p.min_tokens > 0 for p in params),
        )


@dataclass(frozen=True)
class SamplingColumns:
    """B rows. Columns are replaced, never written in place."""

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
            temperature_B=column([p.temperature for p in params], torch.float32),
            top_k_B=column([p.top_k for p in params], torch.int64),
            top_p_B=column([p.top_p for p in params], torch.float32),
            min_p_B=column([p.min_p for p in params], torch.float32),
            seed_B=column([_as_int64(p.seed) for p in params], torch.int64),
            choice_B=column([req.choice for req in reqs], torch.int64),
        )

    def _columns(self) -> tuple[Tensor, ...]:
        return (self.temperature_B, self.top_k_B, self.top_p_B, self.min_p_B, self.seed_B, self.choice_B)

    def take(self, index_N: Tensor) -> "SamplingColumns":
        """The rows at `index_N`."""
        return SamplingColumns(*(column.index_select(0, index_N) for column in self._columns()))

    def concat(self, other: "SamplingColumns") -> "SamplingColumns":
        """These rows, then the other's."""
        pairs = zip(self._columns(), other._columns(), strict=True)
        return SamplingColumns(*(torch.cat(pair) for pair in pairs))

    def input(self, reqs: Sequence[Req], flags: SamplingFlags, position_B: Tensor) -> SamplingInput:
        """What the sampler needs to draw the token at `position_B` of each row; `reqs` and `flags` are the rows'."""
        return SamplingInput(
            temperature_L=self.temperature_B,
            top_k_L=self.top_k_B,
            top_p_L=self.top_p_B,
            min_p_L=self.min_p_B,
            seed_L=self.seed_B,
            choice_L=self.choice_B,
            position_L=position_B,
            banned=banned_endings(reqs) if flags.any_min_tokens else (),
            all_greedy=flags.all_greedy,
            any_top_k=flags.any_top_k,
            any_top_p=flags.any_top_p,
            any_min_p=flags.any_min_p,
        )


def banned_endings(reqs: Sequence[Req]) -> Banned:
    """(row, token ids) for each request that may not end with its next token."""
    return tuple((row, tuple(sorted(req.sampling.ending_ids))) for row, req in enumerate(reqs) if req.bans_endings)


def _as_int64(seed: int) -> int:
    """A 64-bit seed as the signed integer with the same bits."""
    bits = seed & (2**64 - 1)
    return bits - 2**64 if bits >= 2**63 else bits
