"""A mixture of experts: a router sends each token to a few experts, each a small MLP, and the results are summed.

This is the form for any device; cpu_experts.py computes the same on a CPU in C, experts_triton.py on a GPU.
Scores, choice and weights are float32, and so is the sum. A router's product is computed in float64, because torch's
float32 products round differently on other numbers of threads and beside other rows, and all ranks of a group must
choose the same experts. The experts of a token are added in the order of their numbers, whatever other tokens there
are, the shared expert last. Of equal scores the lower expert is chosen.
Shapes: T tokens, E hidden, X experts, K experts of a token, G groups of experts, R tokens of one expert.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from model.mlp import Share
from model.passes import Passes
from protocol.messages_group import StepShape
from runtime.model_parts import ExpertsConfig, RouterConfig

LEAST_SUM: Final = 1e-20  # added to the sum that weights are divided by
GROUPED_GATES: Final = ("silu", "clamped")  # of experts_triton.py


def is_grouped(feed: ExpertsConfig, device: torch.device) -> bool:
    """Whether experts_triton.py computes it, where the host reads nothing back: on a GPU, if Triton is installed."""
    return device.type == "cuda" and find_spec("triton") is not None and feed.expert.gate in GROUPED_GATES


@dataclass(frozen=True)
class Router:
    """Chooses the experts of each token. `choice_bias_X` is None for routers without one."""

    config: RouterConfig
    weight_XE: Tensor  # float64
    choice_bias_X: Tensor | None  # float32
    bias_X: Tensor | None = None  # float64, of the logits

    def __call__(self, x_TE: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token, ascending, and their weights: (T, K) each."""
        scores_TX = self._scores(F.linear(x_TE.double(), self.weight_XE, self.bias_X).float())
        ranked_TX = scores_TX if self.choice_bias_X is None else scores_TX + self.choice_bias_X
        if self.config.num_groups > 1:
            ranked_TX = self._within_groups(ranked_TX)

        chosen_TK = best(ranked_TX, self.config.num_chosen).sort(dim=-1).values
        weights_TK = scores_TX.gather(1, chosen_TK)
        if self.config.normalised:
            weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + LEAST_SUM)
        return chosen_TK, weights_TK * self.config.scale

    def _scores(self, logits_TX: Tensor) -> Tensor:
        return logits_TX.softmax(dim=-1) if self.config.scores == "softmax" else logits_TX.sigmoid()

    def _within_groups(self, ranked_TX: Tensor) -> Tensor:
        """The same, and -inf outside of the groups whose best two scores are the highest together."""
        (num_tokens, count), num_groups = ranked_TX.shape, self.config.num_groups
        ranked_TGX = ranked_TX.view(num_tokens, num_groups, count // num_groups)
        of_group_TG = ranked_TGX.topk(2, dim=-1).values.sum(dim=-1)
        chosen_TG = torch.zeros_like(of_group_TG, dtype=torch.bool)
        chosen_TG.scatter_(1, best(of_group_TG, self.config.num_chosen_groups), True)
        return ranked_TGX.masked_fill(~chosen_TG[..., None], float("-inf")).flatten(1)


def best(scores_TX: Tensor, count: int) -> Tensor:
    """The indices of the `count` highest scores of each row, (T, count). Of equal ones the lowest index is better."""
    return scores_TX.sort(dim=-1, descending=True, stable=True).indices[:, :count]


@dataclass(frozen=True)
class Experts:
    """A feed, or a rank's share of one: the router, and the same share of each expert."""

    router: Router
    experts: tuple[Share, ...]
    shared: Share | None
    is_alone = True
    linears = None

    def __call__(self, x_NE: Tensor, passes: Passes) -> Tensor:
        """The weighted sum of each token's experts, and the shared one. One product for each expert that is hit."""
        chosen_TK, weights_TK = self.router(x_NE)
        total_TE = torch.zeros_like(x_NE, dtype=torch.float32)

        # (token, place) pairs by expert, and within one expert in the order of tokens.
        pairs = chosen_TK.flatten().argsort(stable=True)
        tokens, weights = pairs // self.router.config.num_chosen, weights_TK.flatten()[pairs]
        counts = chosen_TK.flatten().bincount(minlength=len(self.experts)).tolist()
        for expert, rows_R, weights_R in zip(self.experts, tokens.split(counts), weights.split(counts), strict=True):
            if rows_R.numel():
                y_RE = expert(x_NE.index_select(0, rows_R), passes)
                total_TE.index_add_(0, rows_R, y_RE.float() * weights_R[:, None])

        if self.shared is not None:
            total_TE += self.shared(x_NE, passes)
        return total_TE.to(x_NE.dtype)

    def result(self, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """See Feed."""
        return self(x_TE, passes)

    def added_to(self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None) -> Tensor:
        """See Feed."""
        return residual_TE + self(x_TE, passes)

    def added_norm(
        self, residual_TE: Tensor, x_TE: Tensor, passes: Passes, step: StepShape | None, weight_E: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See Feed."""
        return passes.added_norm(residual_TE, self(x_TE, passes), weight_E)
