"""Experts in C choose by the router's formula, and sum in the order of experts: the same bits in any batch."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.cpu_experts import CpuExperts
from model.cpu_kernels import CpuKernels, load_kernels
from model.cpu_products import Threads, in_place, pack_bfloat16
from model.experts import Experts, Router
from model.fake import FakeRunner
from model.linear import AnyLinear, Linear, Pack, Unpacked, parallel_linears
from model.mlp import Clamped, Mlp, Sharded
from protocol.messages_group import StepShape
from runtime.model_parts import RouterConfig
from tests.model.ranks import MetCollectives, met
from tests.model.routing import numbers, routed, routers

HIDDEN, WIDTH, COUNT = 40, 24, 7
LIMITS = Clamped(1.5, 1.7)
GROUPED = RouterConfig(3, "sigmoid", has_choice_bias=True, scale=1.5)
KINDS = {  # the dtype of rows, and whether weights are packed
    "float32 in place": (torch.float32, False),
    "float32 packed": (torch.float32, True),
    "bfloat16 in place": (torch.bfloat16, False),
    "bfloat16 packed": (torch.bfloat16, True),
}


class FixedThreads(Threads):
    """As many threads as a test says."""

    num = 1

    def for_rows(self, rows: int) -> int:
        """See Threads."""
        return self.num


@dataclass(frozen=True)
class Kind:
    """One kind of weights on this CPU."""

    dtype: torch.dtype
    is_packed: bool
    kernels: CpuKernels
    threads: FixedThreads

    def mlp(self, seed: int, *, ranks: MetCollectives | None = None, hidden: int = HIDDEN, width: int = WIDTH) -> Mlp:
        """An MLP, or a rank's share of one: rows of gate and up, columns of down."""
        gate, up, down = (
            Linear(numbers(*shape, seed=seed + index).to(self.dtype) / 4)
            for index, shape in enumerate(((width, hidden), (width, hidden), (hidden, width)))
        )
        if ranks is not None:
            size = width // ranks.size
            own = slice(ranks.rank * size, (ranks.rank + 1) * size)
            gate, up, down = Linear(gate.weight_OI[own]), Linear(up.weight_OI[own]), Linear(down.weight_OI[:, own])
        return self._mlp(gate, up, down)

    def limited(self, seed: int) -> tuple[Mlp, tuple[Linear, ...]]:
        """An expert of gpt-oss, with biases and limits; and its gate, up and down as they are."""
        plain = tuple(
            Linear(
                (numbers(*shape, seed=seed + index) / 4).bfloat16().to(self.dtype),
                numbers(shape[0], seed=seed + 5 + index),
            )
            for index, shape in enumerate(((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH)))
        )
        return replace(self._mlp(*plain), gating=LIMITS), plain

    def _mlp(self, gate: Linear, up: Linear, down: Linear) -> Mlp:
        pack = Pack(self._made, copies=self.is_packed)
        return Mlp(parallel_linears((gate, up), merge=self.is_packed, pack=pack), pack.make(down))

    def mixture(
        self, config: RouterConfig = GROUPED, *, shared: bool = True, ranks: MetCollectives | None = None
    ) -> Experts:
        """Random experts of this kind."""
        bias_X = numbers(COUNT, seed=5) / 4 if config.has_choice_bias else None
        router = Router(config, numbers(COUNT, HIDDEN, seed=7).double() / 4, bias_X)
        mlps = [self.mlp(10 * index, ranks=ranks) for index in range(COUNT)]
        return Experts(router, tuple(mlps), self.mlp(100, ranks=ranks, width=2 * WIDTH) if shared else None)

    def limited_mixture(self) -> Experts:
        """Experts as those of gpt-oss, chosen by biased logits."""
        router = Router(
            RouterConfig(3, has_bias=True),
            numbers(COUNT, HIDDEN, seed=7).double() / 4,
            None,
            numbers(COUNT, seed=8).double(),
        )
        return Experts(router, tuple(self.limited(10 * index)[0] for index in range(COUNT)), None)

    def in_c(self, mixture: Experts) -> CpuExperts:
        """The same in C."""
        found = CpuExperts.of(self.kernels, mixture)
        assert found is not None
        return found

    def rows(self, rows: int, seed: int = 1) -> Tensor:
        """Random tokens."""
        return numbers(rows, HIDDEN, seed=seed).to(self.dtype)

    def _made(self, linear: Unpacked) -> AnyLinear:
        if self.is_packed:
            return pack_bfloat16(linear, self.kernels.library, self.threads, self.dtype)
        return in_place(linear, self.kernels.library, self.threads)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    dtype, is_packed = KINDS[request.param]
    threads = FixedThreads()
    kernels = load_kernels(FakeRunner(head_dim=16).config, dtype, "bfloat16", threads)
    if not kernels.has_products and (is_packed or dtype == torch.bfloat16):
        pytest.skip("this CPU has no instructions for the products")
    return Kind(dtype, is_packed, kernels, threads)


@dataclass(frozen=True)
class Given(Router):
    """A router whose choice is known."""

    choice: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def __call__(self, x_TE: Tensor) -> tuple[Tensor, Tensor]:
        """The choice."""
        return self.choice


def with_choice(mixture: Experts, choice: tuple[Tensor, Tensor]) -> Experts:
    """The same, with these experts and weights of each token."""
    router = mixture.router
    return replace(mixture, router=Given(router.config, router.weight_XE, router.choice_bias_X, choice=choice))


# ---- the router ----


@settings(max_examples=200, deadline=None)
@given(routers(), st.integers(0, 7), st.integers(0, 2**31), st.booleans())
def test_a_router_chooses_and_weights_by_its_formula(
    made: tuple[RouterConfig, int], num_tokens: int, seed: int, ties: bool
) -> None:
    """With `ties` logits and biases are whole numbers of a few values, so that many scores are equal."""
    config, count = made
    logits_TX = numbers(num_tokens, count, seed=seed, whole=ties).clamp(-3, 3)
    bias_X = (numbers(count, seed=seed + 1, whole=ties) > 0).float() if ties else numbers(count, seed=seed + 1)
    kernels = load_kernels(FakeRunner(head_dim=16).config, torch.float32, "bfloat16")
    own = Kind(torch.float32, False, kernels, FixedThreads())
    router = Router(config, torch.eye(count).double(), bias_X if config.has_choice_bias else None)
    mlps = tuple(own.mlp(index, hidden=count, width=2) for index in range(count))

    chosen_TK, weights_TK = own.in_c(Experts(router, mlps, None)).route(logits_TX)
    scores_TX = logits_TX.softmax(-1) if config.scores == "softmax" else logits_TX.sigmoid()
    bias = bias_X.tolist() if config.has_choice_bias else [0.0] * count
    assert chosen_TK.shape == weights_TK.shape == (num_tokens, config.num_chosen)
    for scores_X, chosen_K, weights_K in zip(scores_TX, chosen_TK, weights_TK, strict=True):
        chosen, weights = routed(config, scores_X.tolist(), bias)
        assert chosen_K.tolist() == chosen
        assert weights_K.tolist() == pytest.approx(weights, rel=1e-5)


@pytest.mark.parametrize("config", [RouterConfig(3), GROUPED, RouterConfig(2, num_groups=2, num_chosen_groups=1)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_token_that_is_not_finite_spoils_no_other(kind: Kind, config: RouterConfig, value: float) -> None:
    mixture = kind.mixture(replace(config, num_groups=1, num_chosen_groups=1) if COUNT % config.num_groups else config)
    in_c, x_TE = kind.in_c(mixture), kind.rows(9)
    healthy_TE = in_c(x_TE, kind.kernels)
    x_TE[4, 3] = value
    chosen_TK, _ = in_c.route(x_TE)
    assert bool(((chosen_TK >= 0) & (chosen_TK < COUNT)).all()) and len(set(chosen_TK[4].tolist())) == config.num_chosen
    found_TE = in_c(x_TE, kind.kernels)
    others = [row for row in range(9) if row != 4]
    assert torch.equal(found_TE[others], healthy_TE[others]) and not found_TE[4].isfinite().all()


# ---- the sum ----


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 33, 700])
def test_the_bits_are_those_of_one_expert_after_the_other(kind: Kind, rows: int, shared: bool) -> None:
    """So the sum is in the order of experts. 700 rows have 2,100 pairs, which do not fit into one group of experts."""
    mixture, x_TE, residual_TE = kind.mixture(shared=shared), kind.rows(rows), kind.rows(rows, seed=2)
    in_c = kind.in_c(mixture)
    expected_TE = with_choice(mixture, in_c.route(x_TE))(x_TE, kind.kernels)
    assert torch.equal(in_c(x_TE, kind.kernels), expected_TE)
    assert torch.equal(in_c.added_to(residual_TE, x_TE, kind.kernels, None), residual_TE + expected_TE)
    if rows:
        by_torch_TE = mixture(x_TE, kind.kernels).double()
        slack = 1e-5 if kind.dtype == torch.float32 else 2e-2
        torch.testing.assert_close(expected_TE.double(), by_torch_TE, rtol=slack, atol=slack)

    weight_E = numbers(HIDDEN, seed=5).to(kind.dtype)
    sum_TE, normed_TE = in_c.added_norm(residual_TE, x_TE, kind.kernels, None, weight_E)
    assert torch.equal(sum_TE, residual_TE + expected_TE)
    assert torch.equal(normed_TE, kind.kernels.rms_norm(sum_TE, weight_E))


def _exact(linear: Linear, x_TI: Tensor) -> Tensor:
    assert linear.bias_O is not None
    return x_TI @ linear.weight_OI.double().T + linear.bias_O.double()


def test_experts_with_biases_and_limits_are_what_their_formula_says(kind: Kind) -> None:
    """That of gpt-oss in float64. Gates and ups lie on both sides of the limits, and one number is NaN."""
    mixture, x_TE = kind.limited_mixture(), kind.rows(60)
    assert mixture.router.bias_X is not None
    logits_TX = x_TE.double() @ mixture.router.weight_XE.T + mixture.router.bias_X
    best_TK = logits_TX.topk(3).indices.sort().values
    weights_TK, expected_TE = logits_TX.gather(1, best_TK).softmax(-1), torch.zeros(60, HIDDEN, dtype=torch.float64)
    num_cut = 0
    for index in range(COUNT):
        _, (gate, up, down) = kind.limited(10 * index)
        gate_TI, up_TI = (_exact(linear, x_TE.double()) for linear in (gate, up))
        num_cut += int((gate_TI > 1.5).sum() + (up_TI > 1.5).sum() + (up_TI < -1.5).sum())
        inner_TI = (up_TI.clamp(-1.5, 1.5) + 1) * gate_TI.clamp(max=1.5) / (1 + (-1.7 * gate_TI.clamp(max=1.5)).exp())
        expected_TE += (weights_TK * (best_TK == index)).sum(-1, keepdim=True) * _exact(down, inner_TI)
    assert num_cut > 100, "limits are reached"

    in_c, slack = kind.in_c(mixture), 1e-5 if kind.dtype == torch.float32 else 3e-2
    torch.testing.assert_close(in_c(x_TE, kind.kernels).double(), expected_TE, rtol=slack, atol=slack)
    assert torch.equal(in_c.route(x_TE)[0], best_TK)
    x_TE[7, 3] = float("nan")
    assert in_c(x_TE, kind.kernels).isnan().any(-1).nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("limited", [False, True])
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 3), st.integers(0, 1000))
def test_any_split_of_tokens_gives_the_bits_of_all_together(
    kind: Kind, limited: bool, sizes: list[int], threads: int, seed: int
) -> None:
    mixture = kind.limited_mixture() if limited else kind.mixture()
    in_c, x_TE = kind.in_c(mixture), kind.rows(sum(sizes), seed)
    kind.threads.num = 1
    expected_TE = in_c(x_TE, kind.kernels)
    kind.threads.num = threads
    try:
        apart_TE = torch.cat([in_c(rows_RE, kind.kernels) for rows_RE in x_TE.split(sizes)])
    finally:
        kind.threads.num = 1
    assert torch.equal(apart_TE, expected_TE)


# ---- ranks ----


@pytest.mark.parametrize("counts", [(1, 1), (3, 0), (0, 0), (0, 1, 0, 5), (4, 2, 7, 1)])
def test_ranks_share_each_expert_and_give_what_the_whole_mixture_gives(kind: Kind, counts: tuple[int, ...]) -> None:
    """A rank's share of down is some columns, which are no copy where weights stay in place."""
    whole, step = kind.in_c(kind.mixture()), StepShape(1, counts)
    own = [kind.rows(count, seed) for seed, count in enumerate(counts)]

    def main(ranks: MetCollectives) -> Tensor:
        share = kind.in_c(kind.mixture(ranks=ranks))
        return Sharded(share, None, ranks).added_to(own[ranks.rank], own[ranks.rank], kind.kernels, step)

    slack = 1e-5 if kind.dtype == torch.float32 else 3e-2
    for x_TE, found_TE in zip(own, met(len(counts), main), strict=True):
        torch.testing.assert_close(found_TE, whole.added_to(x_TE, x_TE, kind.kernels, None), rtol=slack, atol=slack)


def test_experts_that_c_has_no_products_for_stay_as_they_are(kind: Kind) -> None:
    mixture = kind.mixture()
    plain = Mlp(parallel_linears((Linear(numbers(WIDTH, HIDDEN, seed=1)),) * 2, merge=False), mixture.experts[0].down)  # type: ignore[attr-defined]
    assert CpuExperts.of(kind.kernels, replace(mixture, experts=(plain, *mixture.experts[1:]))) is None
    assert CpuExperts.of(kind.kernels, replace(mixture, shared=plain)) is None
