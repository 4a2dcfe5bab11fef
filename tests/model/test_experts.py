"""A router chooses what its formula says, and the experts' results are summed in their order, whatever the batch."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.experts import Experts, Router
from model.linear import Linear, ParallelLinears
from model.mlp import Mlp, Sharded, Share
from model.passes import Passes, TorchPasses
from protocol.messages_group import StepShape
from runtime.model_parts import RouterConfig
from tests.model.ranks import MetCollectives, met
from tests.model.routing import numbers, routed, routers

HIDDEN, WIDTH, COUNT = 6, 8, 4
PASSES = TorchPasses(1, HIDDEN, 1e-6)
SECOND = RouterConfig(2, "sigmoid")


@dataclass(frozen=True)
class Products(TorchPasses):
    """The gate is a product, so that whole numbers give whole numbers, which no order of additions rounds."""

    def gated(self, gate_up: tuple[Tensor, ...]) -> Tensor:
        """gate * up."""
        return gate_up[0] * gate_up[1]


# ---- the router ----


@settings(max_examples=200, deadline=None)
@given(routers(), st.integers(0, 7), st.integers(0, 2**31), st.booleans())
def test_a_router_chooses_and_weights_by_its_formula(
    made: tuple[RouterConfig, int], num_tokens: int, seed: int, ties: bool
) -> None:
    """With `ties` logits and biases are whole numbers of a few values, so that many scores are equal."""
    (config, count), generator = made, torch.Generator().manual_seed(seed)
    if ties:
        logits_TX = torch.randint(-1, 2, (num_tokens, count), generator=generator).float()
        bias_X = torch.randint(0, 2, (count,), generator=generator).float()
    else:
        logits_TX, bias_X = (torch.randn(*shape, generator=generator) for shape in ((num_tokens, count), (count,)))

    router = Router(config, torch.eye(count).double(), bias_X if config.has_choice_bias else None)
    chosen_TK, weights_TK = router(logits_TX)
    scores_TX = logits_TX.softmax(-1) if config.scores == "softmax" else logits_TX.sigmoid()
    bias = bias_X.tolist() if config.has_choice_bias else [0.0] * count
    assert chosen_TK.shape == weights_TK.shape == (num_tokens, config.num_chosen)
    for scores_X, chosen_K, weights_K in zip(scores_TX, chosen_TK, weights_TK, strict=True):
        chosen, weights = routed(config, scores_X.tolist(), bias)
        assert chosen_K.tolist() == chosen
        assert weights_K.tolist() == pytest.approx(weights, rel=1e-5)


def test_of_equal_scores_the_lower_expert_is_chosen() -> None:
    router = Router(RouterConfig(3), torch.zeros(200, HIDDEN).double(), None)
    chosen_TK, weights_TK = router(torch.randn(50, HIDDEN))
    assert chosen_TK.tolist() == [[0, 1, 2]] * 50
    assert torch.equal(weights_TK, torch.full((50, 3), 1 / 3))


@pytest.mark.parametrize("num_tokens", [5, 6, 7, 9, 10])
def test_a_router_has_the_same_bits_on_any_number_of_threads(num_tokens: int) -> None:
    """Ranks of a group may have different numbers of them, and each chooses the experts of all tokens."""
    router = Router(RouterConfig(8), numbers(128, 2048, seed=5).double(), None)
    x_TE, before = numbers(num_tokens, 2048, seed=6), torch.get_num_threads()
    try:
        chosen = []
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            chosen.append(router(x_TE))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, first) for each in chosen[1:] for one, first in zip(each, chosen[0], strict=True))


def test_a_bias_changes_the_choice_but_no_weight() -> None:
    config = RouterConfig(1, "sigmoid", has_choice_bias=True, normalised=False)
    logits_TX = torch.tensor([[1.0, 0.0, -1.0]])
    chosen_TK, weights_TK = Router(config, torch.eye(3).double(), torch.tensor([0.0, 0.0, 5.0]))(logits_TX)
    assert chosen_TK.tolist() == [[2]] and torch.equal(weights_TK[0], logits_TX[0, 2:].sigmoid())


def test_scores_are_float32_whatever_the_tokens_are() -> None:
    router = Router(RouterConfig(2), torch.randn(COUNT, HIDDEN).double(), None)
    x_TE = torch.randn(9, HIDDEN).bfloat16()
    chosen_TK, weights_TK = router(x_TE)
    assert weights_TK.dtype == torch.float32
    assert all(
        torch.equal(one, other) for one, other in zip(router(x_TE.float()), (chosen_TK, weights_TK), strict=True)
    )


# ---- the experts ----


def mlp_of(seed: int, ranks: MetCollectives | None = None, *, whole: bool = False) -> Mlp:
    """One expert, or a rank's share of it."""
    own = slice(None)
    if ranks is not None:
        size = WIDTH // ranks.size
        own = slice(ranks.rank * size, (ranks.rank + 1) * size)
    gate_IE, up_IE = (numbers(WIDTH, HIDDEN, seed=seed + index, whole=whole) for index in range(2))
    down_EI = numbers(HIDDEN, WIDTH, seed=seed + 2, whole=whole)
    return Mlp(ParallelLinears((Linear(gate_IE[own]), Linear(up_IE[own]))), Linear(down_EI[:, own]))


def experts_of(
    config: RouterConfig = SECOND, ranks: MetCollectives | None = None, *, shared: bool = True, whole: bool = False
) -> Experts:
    router = Router(config, numbers(COUNT, HIDDEN, seed=7, whole=whole).double(), None)
    experts = tuple(mlp_of(10 * index, ranks, whole=whole) for index in range(COUNT))
    return Experts(router, experts, mlp_of(100, ranks, whole=whole) if shared else None)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 33])
def test_they_give_the_weighted_sum_of_their_experts(num_tokens: int, shared: bool) -> None:
    mixture, x_TE = experts_of(shared=shared), numbers(num_tokens, HIDDEN, seed=3)
    chosen_TK, weights_TK = mixture.router(x_TE)
    weights_TX = torch.zeros(num_tokens, COUNT).scatter_(1, chosen_TK, weights_TK)
    each_XTE = torch.stack([expert(x_TE, PASSES) for expert in mixture.experts])
    expected_TE = torch.einsum("tx,xte->te", weights_TX.double(), each_XTE.double())
    if mixture.shared is not None:
        expected_TE = expected_TE + mixture.shared(x_TE, PASSES)

    found_TE = mixture(x_TE, PASSES)
    torch.testing.assert_close(found_TE.double(), expected_TE, rtol=1e-5, atol=1e-5)
    residual_TE, weight_E = numbers(num_tokens, HIDDEN, seed=4), numbers(HIDDEN, seed=5)
    assert torch.equal(mixture.added_to(residual_TE, x_TE, PASSES, None), residual_TE + found_TE)
    sum_TE, normed_TE = mixture.added_norm(residual_TE, x_TE, PASSES, None, weight_E)
    assert torch.equal(sum_TE, residual_TE + found_TE)
    assert torch.equal(normed_TE, PASSES.rms_norm(sum_TE, weight_E))


@dataclass
class Constant:
    """An expert that gives one number for each token, and notes how many tokens it has computed."""

    value: float
    seen: list[int] = field(default_factory=list)

    def __call__(self, x_NE: Tensor, passes: Passes) -> Tensor:
        """See Share."""
        self.seen.append(x_NE.shape[0])
        return torch.full_like(x_NE, self.value)


def choosing(*experts: tuple[int, ...]) -> Tensor:
    """(T, X) logits with which each token has these experts, with equal weights."""
    logits_TX = torch.full((len(experts), COUNT), -1.0)
    for row_X, own in zip(logits_TX, experts, strict=True):
        row_X[list(own)] = 1.0
    return logits_TX


def test_the_order_of_the_sum_is_that_of_the_experts() -> None:
    """(1e8 + 1) - 1e8 + 1 is 1 in float32; in other orders it is 0 or 2. The shared one is last."""
    ones = RouterConfig(4, "sigmoid", normalised=False, scale=1 / float(torch.ones(1).sigmoid()))
    for values, shared, total in (
        ((1e8, 1.0, -1e8, 1.0), 0.0, 1.0),
        ((1.0, 1.0, 1e8, -1e8), 0.0, 0.0),
        ((1e8, 0.0, 0.0, 1.0), -1e8, 0.0),
    ):
        experts: tuple[Share, ...] = tuple(map(Constant, values))
        mixture = Experts(Router(ones, torch.eye(COUNT).double(), None), experts, Constant(shared))
        x_TX = choosing(*[(0, 1, 2, 3)] * 5)
        assert mixture(x_TX, PASSES).unique().tolist() == [total]


def test_only_experts_that_a_token_has_are_computed_for_it() -> None:
    experts = tuple(Constant(float(index)) for index in range(COUNT))
    mixture = Experts(Router(SECOND, torch.eye(COUNT).double(), None), experts, None)
    found_TX = mixture(choosing((0, 3), (3, 0), (0, 2)), PASSES)
    assert [expert.seen for expert in experts] == [[3], [], [1], [2]]
    assert found_TX[:, 0].tolist() == pytest.approx([1.5, 1.5, 1.0])
    assert mixture(torch.empty(0, COUNT), PASSES).shape == (0, COUNT)
    assert [len(expert.seen) for expert in experts] == [1, 0, 1, 1]


def test_other_tokens_change_no_bit() -> None:
    """Products of whole numbers are exact, however many rows they have. So what is left is the order of the sums, of
    three experts: two may be added in any order."""
    mixture, passes = experts_of(RouterConfig(3, "sigmoid"), whole=True), Products(1, HIDDEN, 1e-6)
    own_TE = numbers(20, HIDDEN, seed=8, whole=True)
    expected_TE = mixture(own_TE, passes)
    assert bool((expected_TE != expected_TE.round()).any()), "the weights are no whole numbers"
    for one_1E, expected_1E in zip(own_TE.split(1), expected_TE.split(1), strict=True):
        assert torch.equal(mixture(one_1E, passes), expected_1E)
    for count, seed in ((0, 0), (1, 1), (14, 2), (60, 3)):
        others_TE = numbers(count, HIDDEN, seed=seed, whole=True)
        assert torch.equal(mixture(torch.cat((own_TE, others_TE)), passes)[:20], expected_TE)
        assert torch.equal(mixture(torch.cat((others_TE, own_TE)), passes)[count:], expected_TE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_of_few_bits_are_added_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    ones = RouterConfig(4, "sigmoid", normalised=False, scale=1 / float(torch.ones(1).sigmoid()))
    experts: tuple[Share, ...] = tuple(map(Constant, (2048.0, 0.5, 0.5, 0.5)))
    mixture = Experts(Router(ones, torch.eye(COUNT).double(), None), experts, Constant(0.5))
    found_TX = mixture(choosing((0, 1, 2, 3)).to(dtype), PASSES)
    assert found_TX.dtype == dtype and torch.equal(found_TX, torch.full((1, COUNT), 2050.0).to(dtype))


def test_weights_stay_float32_beside_results_of_few_bits() -> None:
    """Rounded before the sum, some of these tokens would end in other bits."""
    values = (251.0, 17.0, 5.0, 129.0)
    experts: tuple[Share, ...] = tuple(map(Constant, values))
    router = Router(RouterConfig(4), torch.eye(COUNT).double(), None)
    x_TX = numbers(64, COUNT, seed=1).bfloat16()
    _, weights_TK = router(x_TX)
    total_T = sum(weights_TK[:, index] * value for index, value in enumerate(values))
    assert isinstance(total_T, Tensor)
    assert torch.equal(Experts(router, experts, None)(x_TX, PASSES)[:, 0], total_T.bfloat16())


# ---- ranks ----


@pytest.mark.parametrize("counts", [(1, 1), (3, 0), (0, 0), (0, 1, 0, 5), (4, 2, 7, 1)])
def test_ranks_share_each_expert_and_give_what_the_whole_mixture_gives(counts: tuple[int, ...]) -> None:
    """Also for ranks without tokens, and with experts that no token has."""
    whole, step = experts_of(), StepShape(1, counts)
    own = [numbers(count, HIDDEN, seed=seed) for seed, count in enumerate(counts)]

    def main(ranks: MetCollectives) -> Tensor:
        x_TE = own[ranks.rank]
        found_TE = Sharded(experts_of(SECOND, ranks), None, ranks).added_to(x_TE, 2 * x_TE, PASSES, step)
        assert [operation for operation, _, _ in ranks.entered] == ["gather", "exchange"]
        return found_TE

    for x_TE, found_TE in zip(own, met(len(counts), main), strict=True):
        torch.testing.assert_close(found_TE, whole.added_to(x_TE, 2 * x_TE, PASSES, None), rtol=1e-5, atol=1e-5)
