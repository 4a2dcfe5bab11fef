"""The feed of a layer: its interface, the dense MLP, and a feed that the ranks of a group share.

    own tokens -> gather -> rows of gate and up, columns of down -> exchange -> sum of the parts -> own tokens

A rank of a sharded feed holds a share of the intermediate values: the same rows of the weights of gate and up, and
those columns of down's weight (`Cut` in model/weights.py). It computes its share for the tokens of every rank. The
parts of a token are added in the order of ranks, whatever padding there is and whoever is idle. As in any batch, a
product may round a row differently beside more rows.
Shapes: T own tokens, N tokens of all ranks, R ranks, P tokens of each rank, padded; E hidden.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from model.collectives import Collectives
from model.linear import AnyLinear, ParallelLinears
from model.passes import Passes
from protocol.errors import ConfigError
from protocol.messages_group import StepShape
from runtime.model_config import ModelConfig
from runtime.model_parts import MlpConfig


def check_divides(num_ranks: int, config: ModelConfig) -> None:
    """ConfigError if the intermediate values of a layer cannot be shared out evenly."""
    for mlp in (mlp for layer in config.layers for mlp in layer.feed.shared_out):
        if mlp.width % num_ranks:
            expected = f"expected a divisor of {mlp.width}, the {mlp.field} of config.json"
            raise ConfigError(f"dp_size: got {num_ranks}, {expected}", param="dp-size")


Gating = Callable[[Tensor, Tensor], Tensor]  # of gate and up


def gating_of(mlp: MlpConfig) -> Gating | None:
    """How gate and up become intermediate values. None: silu(gate) * up."""
    match mlp.gate:
        case "gelu_tanh":
            return lambda gate_NI, up_NI: F.gelu(gate_NI, approximate="tanh") * up_NI
        case "clamped":
            return Clamped(mlp.limit, mlp.alpha)
        case _:
            return None


@dataclass(frozen=True)
class Clamped:
    """The gate of gpt-oss, in transformers' order of operations. gate is at most `limit`, and up lies within it."""

    limit: float  # above 0
    alpha: float

    def __call__(self, gate_NI: Tensor, up_NI: Tensor) -> Tensor:
        gate_NI, up_NI = gate_NI.clamp(max=self.limit), up_NI.clamp(min=-self.limit, max=self.limit)
        return (up_NI + 1) * (gate_NI * torch.sigmoid(gate_NI * self.alpha))


class Feed(Protocol):
    """What a layer computes of each token by itself, between the norm of the mixer's sum and the next addition."""

    @property
    def is_alone(self) -> bool:
        """Whether this rank computes it without the others."""
        ...

    @property
    def linears(self) -> tuple[AnyLinear, ...] | None:
        """The products gate and up (merged or not) and down, if it is a dense MLP with silu that this rank computes
        alone."""
        ...

    def result(self, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """The feed of x. `step` is that of the group's ranks."""
        ...

    def added_to(self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """residual + the feed of x. `step` is that of the group's ranks."""
        ...

    def added_norm(
        self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None, weight_E: Tensor
    ) -> tuple[Tensor, Tensor]:
        """residual + the feed of x, and the norm of this sum with `weight_E`."""
        ...


class Share(Protocol):
    """What a rank computes of a feed for the tokens of all ranks."""

    def __call__(self, x_NE: Tensor, passes: Passes) -> Tensor:
        """The rank's part of each token's result (N, E)."""
        ...


@dataclass(frozen=True)
class Mlp:
    """A dense MLP: whole, or a rank's share of one."""

    gate_up: ParallelLinears
    down: AnyLinear
    gating: Gating | None = None  # None: silu, which the passes compute
    is_alone = True

    @property
    def linears(self) -> tuple[AnyLinear, ...] | None:
        """See Feed."""
        return (*self.gate_up.linears, self.down) if self.gating is None else None

    def __call__(self, x_NE: Tensor, passes: Passes) -> Tensor:
        """The MLP of x."""
        return self.down(self._gated(x_NE, passes))

    def result(self, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """See Feed."""
        return self(x_TE, passes)

    def _gated(self, x_NE: Tensor, passes: Passes) -> Tensor:
        gate_up = self.gate_up(x_NE)
        if self.gating is None:
            return passes.gated(gate_up)
        gate_NI, up_NI = gate_up if len(gate_up) > 1 else gate_up[0].chunk(2, dim=-1)
        return self.gating(gate_NI, up_NI)

    def added_to(self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """See Feed."""
        return self.down.added_to(residual_TE, self._gated(x_TE, passes))

    def added_norm(
        self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None, weight_E: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See Feed."""
        return self.down.added_norm(residual_TE, self._gated(x_TE, passes), passes, weight_E)


@dataclass(frozen=True)
class Sharded:
    """A feed that the ranks of a group compute together."""

    share: Share  # this rank's, without the bias of the outputs
    bias_E: Tensor | None
    collectives: Collectives
    is_alone = False
    linears = None

    def result(self, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """See Feed."""
        return self._together(x_TE, passes, step)

    def added_to(self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """See Feed."""
        return residual_TE + self._together(x_TE, passes, step)

    def added_norm(
        self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None, weight_E: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See Feed."""
        return passes.added_norm(residual_TE, self._together(x_TE, passes, step), weight_E)

    def _together(self, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """The feed of x. It enters one gather and one exchange, whatever this rank or another one computes."""
        assert step is not None, "a rank of a group computes no forward without the step of all ranks"
        num_own, counts = x_TE.shape[0], (step.padded,) * self.collectives.size if step.graphs else step.num_tokens
        announced = counts[self.collectives.rank]
        assert num_own == announced or (step.graphs and num_own < announced), (
            f"step {step.step}: {num_own} tokens, announced were {announced}"
        )

        padded_PE = F.pad(x_TE, (0, 0, 0, step.padded - num_own))
        tokens_NE = without_padding(self.collectives.gather(padded_PE, step), counts)
        parts_NE = self.share(tokens_NE, passes)
        parts_RPE = self.collectives.exchange(with_padding(parts_NE, counts, step.padded), step)
        return self._total(parts_RPE[:, :num_own])

    def _total(self, parts_RTE: Tensor) -> Tensor:
        """The sum of all ranks' parts and the bias, rounded once."""
        total_TE = parts_RTE[0].float()
        for part_TE in parts_RTE[1:]:
            total_TE = total_TE + part_TE
        if self.bias_E is not None:
            total_TE = total_TE + self.bias_E
        return total_TE.to(parts_RTE.dtype)


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
