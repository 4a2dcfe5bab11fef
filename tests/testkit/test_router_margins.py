"""The margin of routers is the gap between what was chosen and the best that was not, in the scores that rank them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from testkit.router_margins import router_margin


class ToyTopKRouter(nn.Module):
    """A router whose logits of token t are row t of a table, as transformers' routers return them."""

    def __init__(self, logits: list[list[float]], top_k: int, **more: Any) -> None:
        super().__init__()
        self.logits_TX, self.top_k = torch.tensor(logits), top_k
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, ids_T: Tensor, *bias: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and something else."""
        return self.logits_TX[ids_T], ids_T


class Toy(nn.Module):
    """A model of one router, which may get its bias when it is called."""

    def __init__(self, router: ToyTopKRouter, *bias: Tensor) -> None:
        super().__init__()
        self.router, self.bias = router, bias

    def forward(self, ids: Tensor) -> Tensor:
        """See ToyTopKRouter."""
        found_TX: Tensor = self.router(ids[0], *self.bias)[0]
        return found_TX


def test_the_least_gap_of_all_texts_and_tokens() -> None:
    router = ToyTopKRouter([[3.0, 2.0, 0.5, 0.0], [1.0, 0.0, 0.75, 0.5]], top_k=2)
    assert router_margin(Toy(router), [[0], [0, 0]]) == pytest.approx(1.5)
    assert router_margin(Toy(router), [[0], [0, 1]]) == pytest.approx(0.25)
    assert not router._forward_hooks, "it leaves no hook behind"


def test_with_a_bias_sigmoids_and_biases_are_ranked() -> None:
    logits, bias_X = [[0.0, 0.0, 0.0]], torch.tensor([0.5, 0.0, 0.25])
    assert router_margin(Toy(ToyTopKRouter(logits, top_k=1), bias_X), [[0]]) == pytest.approx(0.25)
    assert router_margin(Toy(ToyTopKRouter(logits, 2, e_score_correction_bias=bias_X)), [[0]]) == pytest.approx(0.25)


def test_groups_have_a_gap_of_their_own() -> None:
    bias_X = torch.tensor([0.5, 0.0, 0.25, 0.125, 0.0, 0.0])  # of three groups: 0.5, 0.375 and 0
    more = {"num_group": 3, "e_score_correction_bias": bias_X}
    one = ToyTopKRouter([[0.0] * 6], top_k=1, topk_group=1, **more)
    assert router_margin(Toy(one), [[0]]) == pytest.approx(0.125), "between the first two groups"
    two = ToyTopKRouter([[0.0] * 6], top_k=1, topk_group=2, **more)
    assert router_margin(Toy(two), [[0]]) == pytest.approx(0.25), "within the groups, which lie further apart"


def test_where_nothing_else_could_be_chosen_there_is_no_gap() -> None:
    assert router_margin(Toy(ToyTopKRouter([[1.0, 1.0]], top_k=2)), [[0]]) == float("inf")
    assert router_margin(nn.Linear(1, 1), []) == float("inf")
