"""Experts for the fake model: the router, the sum and the exchange of a real mixture, with numbers that are exact.

The choice is skewed: every token has expert 0, half of them expert 1, few one of the next, and nobody the last two. So
launches have experts without tokens, and ranks without any. What a token gives and what comes back is known. The
difference is added to the token's hash: a token that another expert has, twice, or never, changes the text.
Shapes: T tokens, E = 1 + COUNT numbers of a token, X experts.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from model.collectives import Collectives
from model.experts import Experts, Router
from model.mlp import Feed, Sharded
from model.passes import Passes, TorchPasses
from model.sampler import mix, shift_right
from protocol.messages_group import StepShape
from runtime.model_parts import RouterConfig

COUNT: Final = 8
SECONDS: Final = (1,) * 8 + (2,) * 4 + (3,) * 2 + (4, 5)  # a token's second expert, by some bits of a hash of its id
SHARED_FACTOR: Final = COUNT + 1
_SURE: Final = 100.0  # a logit whose sigmoid is 1 in float32
_PASSES: Final = TorchPasses(1, 1, 1e-6)


@dataclass(frozen=True)
class Scaled:
    """A rank's share of an expert: its factor times what comes."""

    factor: int

    def __call__(self, x_NE: Tensor, passes: Passes) -> Tensor:
        """See Share."""
        return x_NE * self.factor


@cache
def mixture(device: torch.device) -> Experts:
    """The experts, the same on each rank. A token's first number is its value, the others are its logits."""
    weight_XE = torch.eye(1 + COUNT, dtype=torch.float64, device=device)[1:]
    router = Router(RouterConfig(2, "sigmoid", normalised=False), weight_XE, None)
    return Experts(router, tuple(Scaled(1 + expert) for expert in range(COUNT)), Scaled(SHARED_FACTOR))


def lost(ids_T: Tensor, collectives: Collectives | None, step: StepShape | None) -> Tensor:
    """By token, how far the sum of its experts on all ranks is from what it must be, (T,): 0 if nothing went wrong."""
    second_T = second_of(ids_T)
    x_TE = torch.full((ids_T.shape[0], 1 + COUNT), -_SURE, device=ids_T.device)
    x_TE[:, 0], x_TE[:, 1] = ids_T, _SURE
    x_TE.scatter_(1, 1 + second_T[:, None], _SURE)

    experts, num_ranks = mixture(ids_T.device), 1 if collectives is None else collectives.size
    feed: Feed = experts if collectives is None else Sharded(experts, None, collectives)
    came_T = feed.result(x_TE, _PASSES, step)[:, 0].long()
    return came_T - num_ranks * ids_T * (1 + 1 + second_T + SHARED_FACTOR)


def second_of(ids_T: Tensor) -> Tensor:
    """The second expert of each token."""
    seconds = torch.tensor(SECONDS, device=ids_T.device)
    return seconds[shift_right(mix(ids_T), 1) % len(SECONDS)]
