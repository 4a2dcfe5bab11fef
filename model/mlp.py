"""The dense MLP of a layer: whole, or sharded over the ranks of a group.

    own tokens -> gather -> columns of gate and up, rows of down -> exchange -> sum of the parts -> own tokens

A rank of a sharded MLP holds a share of the intermediate values: the same rows of the weights of gate and up, and those
columns of down's weight. It computes its share for the tokens of every rank. The parts of a token are added in the
order of ranks, whatever padding there is and whoever is idle. As in any batch, a product may round a row differently
beside more rows.
Shapes: T own tokens, N tokens of all ranks, R ranks, P tokens of each rank, padded; E hidden.
"""

import re
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from model.collectives import Collectives
from model.linear import AnyLinear, ParallelLinears
from model.passes import Passes
from protocol.errors import ConfigError
from protocol.messages_group import StepShape

_SHARDED: Final = re.compile(r"model\.layers\.\d+\.mlp\.((gate|up)_proj\.(weight|bias)|down_proj\.weight)")


def is_sharded(name: str) -> bool:
    """Whether each rank of a group holds a share of the tensor of this name only. Drafts have other names."""
    return _SHARDED.fullmatch(name) is not None


def check_divides(num_ranks: int, intermediate_size: int) -> None:
    """ConfigError if the intermediate values cannot be shared out evenly."""
    if intermediate_size % num_ranks:
        expected = f"expected a divisor of {intermediate_size}, the intermediate_size of config.json"
        raise ConfigError(f"dp_size: got {num_ranks}, {expected}", param="dp-size")


@dataclass(frozen=True)
class Mlp:
    """A whole MLP, for a worker without a group, and for drafts."""

    gate_up: ParallelLinears
    down: AnyLinear

    def added_to(self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """residual + the MLP of x."""
        return self.down.added_to(residual_TE, passes.gated(self.gate_up(x_TE)))

    def added_norm(
        self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None, weight_E: Tensor
    ) -> tuple[Tensor, Tensor]:
        """residual + the MLP of x, and the norm of this sum with `weight_E`."""
        return self.down.added_norm(residual_TE, passes.gated(self.gate_up(x_TE)), passes, weight_E)


@dataclass(frozen=True)
class ShardedMlp:
    """This rank's share of an MLP."""

    gate_up: ParallelLinears
    down: AnyLinear  # without its bias
    down_bias_E: Tensor | None
    collectives: Collectives

    def added_to(self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """residual + the MLP of x, which all ranks compute together."""
        return residual_TE + self._together(x_TE, passes, step)

    def added_norm(
        self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None, weight_E: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See Mlp."""
        return passes.added_norm(residual_TE, self._together(x_TE, passes, step), weight_E)

    def _together(self, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """The MLP of x. It enters one gather and one exchange, whatever this rank or another one computes."""
        assert step is not None, "a rank of a group computes no forward without the step of all ranks"
        num_own, counts = x_TE.shape[0], (step.padded,) * self.collectives.size if step.graphs else step.num_tokens
        announced = counts[self.collectives.rank]
        assert num_own == announced or (step.graphs and num_own < announced), (
            f"step {step.step}: {num_own} tokens, announced were {announced}"
        )

        padded_PE = F.pad(x_TE, (0, 0, 0, step.padded - num_own))
        tokens_NE = without_padding(self.collectives.gather(padded_PE, step), counts)
        parts_NE = self.down(passes.gated(self.gate_up(tokens_NE)))
        parts_RPE = self.collectives.exchange(with_padding(parts_NE, counts, step.padded), step)
        return self._total(parts_RPE[:, :num_own])

    def _total(self, parts_RTE: Tensor) -> Tensor:
        """The sum of all ranks' parts and the bias, rounded once."""
        total_TE = parts_RTE[0].float()
        for part_TE in parts_RTE[1:]:
            total_TE = total_TE + part_TE
        if self.down_bias_E is not None:
            total_TE = total_TE + self.down_bias_E
        return total_TE.to(parts_RTE.dtype)


AnyMlp = Mlp | ShardedMlp


def without_padding(padded_RPE: Tensor, counts: tuple[int, ...]) -> Tensor:
    """(N, E): the tokens of each rank, one rank behind the other."""
    if min(counts) == padded_RPE.shape[1]:
        return padded_RPE.flatten(0, 1)
    return torch.cat([padded_PE[:count] for padded_PE, count in zip(padded_RPE, counts, strict=True)])


def with_padding(tokens_NE: Tensor, counts: tuple[int, ...], padded: int) -> Tensor:
    """(R, P, E): the tokens of each rank, and zeros behind them."""
    if min(counts) == padded:
        return tokens_NE.view(len(counts), padded, tokens_NE.shape[1])
    padded_RPE = tokens_NE.new_zeros((len(counts), padded, tokens_NE.shape[1]))
    for padded_PE, own in zip(padded_RPE, tokens_NE.split(counts), strict=True):
        padded_PE[: own.shape[0]] = own
    return padded_RPE
