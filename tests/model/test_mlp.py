"""A sharded MLP gives what the whole one gives: whatever the other ranks compute, padded or not, with a bias or not."""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from model.collectives_torch import TorchCollectives
from model.kv_sizing import group_bytes
from model.linear import Linear, ParallelLinears
from model.mlp import Mlp, Sharded, check_divides, with_padding, without_padding
from model.passes import Passes, TorchPasses
from protocol.errors import ConfigError
from protocol.messages_group import GroupPlace, StepShape
from runtime.model_parts import AttentionConfig, ExpertsConfig, LayerConfig, MlpConfig, RouterConfig
from tests.doubles.hash_model import FakeRunner
from tests.model.ranks import MetCollectives, met

HIDDEN, INTERMEDIATE = 6, 12
PASSES = TorchPasses(1, HIDDEN, 1e-6)


@dataclass(frozen=True)
class Products(TorchPasses):
    """The gate is a product, so that whole numbers give whole numbers, which no order of additions rounds."""

    def gated(self, gate_up: tuple[Tensor, ...]) -> Tensor:
        """gate * up."""
        gate_TI, up_TI = gate_up
        return gate_TI * up_TI


WHOLE_NUMBERS = Products(1, HIDDEN, 1e-6)


@dataclass(frozen=True)
class Weights:
    """Of one MLP."""

    gate: Linear
    up: Linear
    down: Linear

    @classmethod
    def random(cls, *, bias: bool, whole: bool, seed: int = 0) -> "Weights":
        """Numbers around 0."""
        generator = torch.Generator().manual_seed(seed)

        def made(*shape: int) -> Tensor:
            if whole:
                return torch.randint(-4, 5, shape, generator=generator).float()
            return torch.randn(shape, generator=generator)

        def linear(outputs: int, inputs: int) -> Linear:
            return Linear(made(outputs, inputs), made(outputs) if bias else None)

        return cls(linear(INTERMEDIATE, HIDDEN), linear(INTERMEDIATE, HIDDEN), linear(HIDDEN, INTERMEDIATE))

    @property
    def mlp(self) -> Mlp:
        """The whole of it."""
        return Mlp(ParallelLinears((self.gate, self.up)), self.down)

    def shard(self, ranks: MetCollectives) -> Sharded:
        """The share of a rank."""
        size = INTERMEDIATE // ranks.size
        own = slice(ranks.rank * size, (ranks.rank + 1) * size)

        def rows(linear: Linear) -> Linear:
            return Linear(linear.weight_OI[own], None if linear.bias_O is None else linear.bias_O[own])

        joined = ParallelLinears((rows(self.gate), rows(self.up)))
        return Sharded(Mlp(joined, Linear(self.down.weight_OI[:, own])), self.down.bias_O, ranks)


def tokens(count: int, seed: int, *, whole: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if whole:
        return torch.randint(-4, 5, (count, HIDDEN), generator=generator).float()
    return torch.randn((count, HIDDEN), generator=generator)


def computed(weights: Weights, own: list[Tensor], step: StepShape, passes: Passes) -> list[Tensor]:
    """By rank, `own` as the residual with the MLP of twice of it."""
    return met(
        len(own), lambda ranks: weights.shard(ranks).added_to(own[ranks.rank], 2 * own[ranks.rank], passes, step)
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("counts", [(1, 1), (3, 0), (0, 5), (0, 0), (4, 1, 2), (0, 1, 0), (2, 3, 2, 0)])
def test_each_rank_gets_what_the_whole_mlp_gives_its_tokens(counts: tuple[int, ...], bias: bool) -> None:
    weights = Weights.random(bias=bias, whole=False)
    own = [tokens(count, seed) for seed, count in enumerate(counts)]
    for x_TE, found in zip(own, computed(weights, own, StepShape(1, counts), PASSES), strict=True):
        torch.testing.assert_close(found, weights.mlp.added_to(x_TE, 2 * x_TE, PASSES, None), rtol=1e-5, atol=1e-5)


def test_with_a_norm_each_rank_gets_the_same_and_its_norm() -> None:
    weights, step = Weights.random(bias=True, whole=True), StepShape(1, (2, 0, 1))
    own = [tokens(count, seed, whole=True) for seed, count in enumerate((2, 0, 1))]
    weight_E = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(5))

    def main(ranks: MetCollectives) -> tuple[Tensor, Tensor]:
        x_TE = own[ranks.rank]
        return weights.shard(ranks).added_norm(x_TE, 2 * x_TE, WHOLE_NUMBERS, step, weight_E)

    for x_TE, (sum_TE, normed_TE) in zip(own, met(3, main), strict=True):
        whole = weights.mlp.added_norm(x_TE, 2 * x_TE, WHOLE_NUMBERS, None, weight_E)
        assert torch.equal(sum_TE, weights.mlp.added_to(x_TE, 2 * x_TE, WHOLE_NUMBERS, None))
        assert torch.equal(sum_TE, whole[0]) and torch.equal(normed_TE, whole[1])
        assert torch.equal(normed_TE, WHOLE_NUMBERS.rms_norm(sum_TE, weight_E))


@pytest.mark.parametrize("bias", [False, True])
def test_what_other_ranks_compute_changes_no_bit(bias: bool) -> None:
    weights = Weights.random(bias=bias, whole=True)
    own_3E = tokens(3, 0, whole=True)
    expected = weights.mlp.added_to(own_3E, 2 * own_3E, WHOLE_NUMBERS, None)
    for others in ((0, 0), (3, 3), (1, 7), (9, 0)):
        all_own = [tokens(others[0], 1, whole=True), own_3E, tokens(others[1], 2, whole=True)]
        found = computed(weights, all_own, StepShape(1, (others[0], 3, others[1])), WHOLE_NUMBERS)
        assert torch.equal(found[1], expected)


class Parts:
    """Collectives of which every rank but this one has given `parts`: no other rank is needed."""

    doing = ""

    def __init__(self, rank: int, parts: list[float]) -> None:
        self.rank, self.size, self.parts = rank, len(parts), parts

    def gather(self, own_PE: Tensor, step: StepShape) -> Tensor:
        """The own tokens for each rank."""
        return own_PE.expand(self.size, *own_PE.shape)

    def exchange(self, parts_RPE: Tensor, step: StepShape) -> Tensor:
        """The parts."""
        column = torch.tensor(self.parts, dtype=parts_RPE.dtype)
        return column[:, None, None].expand(self.size, *parts_RPE.shape[1:])


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize("values", [*itertools.permutations((1e8, 1.0, -1e8, 3.0))])
def test_parts_are_added_in_the_order_of_ranks(rank: int, values: tuple[float, ...]) -> None:
    """So all ranks would round alike: (1e8 + 1) - 1e8 + 3 is 3, in other orders it is 0, 1 or 4."""
    linear = Linear(torch.zeros(HIDDEN, HIDDEN))
    mlp = Sharded(Mlp(ParallelLinears((linear, linear)), linear), None, Parts(rank, [*values]))
    x_2E, total = torch.zeros(2, HIDDEN), torch.zeros(())
    for value in values:
        total = total + value
    assert mlp.added_to(x_2E, x_2E, PASSES, StepShape(1, (2, 2, 2, 2))).unique().tolist() == [float(total)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parts_of_few_bits_are_added_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    linear = Linear(torch.zeros(HIDDEN, HIDDEN, dtype=dtype))
    bias_E = torch.full((HIDDEN,), 0.5, dtype=dtype)
    mlp = Sharded(Mlp(ParallelLinears((linear, linear)), linear), bias_E, Parts(0, [2048.0, 0.5, 0.5, 0.5]))
    x_1E = torch.zeros(1, HIDDEN, dtype=dtype)
    found = mlp.added_to(x_1E, x_1E, PASSES, StepShape(1, (1, 1, 1, 1)))
    assert found.dtype == dtype and torch.equal(found, torch.full((1, HIDDEN), 2050.0).to(dtype))


@dataclass
class Recorder:
    """A linear that notes how many tokens it computes."""

    seen: list[int] = field(default_factory=list)

    def __call__(self, x_TI: Tensor) -> Tensor:
        """Zeros."""
        self.seen.append(x_TI.shape[0])
        return torch.zeros(x_TI.shape[0], HIDDEN)

    def added_to(self, residual_TO: Tensor, x_TI: Tensor) -> Tensor:
        """See Linear."""
        return residual_TO + self(x_TI)

    def added_norm(self, residual_TO: Tensor, x_TI: Tensor, passes: Passes, weight_O: Tensor) -> tuple[Tensor, Tensor]:
        """See Linear."""
        return passes.added_norm(residual_TO, self(x_TI), weight_O)


@pytest.mark.parametrize(
    "counts, graphs, rows",
    [((1, 5), False, 6), ((0, 2), False, 2), ((0, 0), False, 0), ((4, 4), False, 8), ((3, 3), True, 6)],
)
def test_padding_is_sent_but_not_computed(counts: tuple[int, ...], graphs: bool, rows: int) -> None:
    """Every rank enters one gather and one exchange of the padded size, whatever it computes."""
    step = StepShape(7, counts, graphs)
    padded = max(counts)

    def main(ranks: MetCollectives) -> None:
        seen = Recorder()
        mlp = Sharded(Mlp(ParallelLinears((seen, seen)), seen), None, ranks)
        x_TE = tokens(counts[ranks.rank], 0)
        assert torch.equal(mlp.added_to(x_TE, x_TE, PASSES, step), x_TE)
        assert seen.seen == [rows] * 3
        assert ranks.entered == [("gather", 7, (padded, HIDDEN)), ("exchange", 7, (2, padded, HIDDEN))]

    met(2, main)


def test_lanes_of_a_graph_are_computed_with_their_padding() -> None:
    """What a graph has captured has one shape, so the idle rank's lanes are computed too."""
    weights = Weights.random(bias=True, whole=True)
    own = [tokens(4, seed, whole=True) for seed in range(2)]
    for x_TE, found in zip(own, computed(weights, own, StepShape(1, (4, 4), True), WHOLE_NUMBERS), strict=True):
        assert torch.equal(found, weights.mlp.added_to(x_TE, 2 * x_TE, WHOLE_NUMBERS, None))


def test_tokens_with_and_without_padding() -> None:
    given_NE = tokens(6, 0)
    for counts, padded in (((1, 0, 5), 5), ((3, 3), 3), ((2, 2, 2), 4), ((0, 6), 6)):
        padded_RPE = with_padding(given_NE, counts, padded)
        assert padded_RPE.shape == (len(counts), padded, HIDDEN)
        assert torch.equal(without_padding(padded_RPE, counts), given_NE)
        assert float(padded_RPE.abs().sum()) == pytest.approx(float(given_NE.abs().sum()))


def test_a_forward_without_its_step_or_of_another_size_is_refused() -> None:
    linear = Linear(torch.zeros(HIDDEN, HIDDEN))
    mlp = Sharded(Mlp(ParallelLinears((linear, linear)), linear), None, Parts(0, [0.0, 0.0]))
    x_2E = tokens(2, 0)
    with pytest.raises(AssertionError, match="without the step of all ranks"):
        mlp.added_to(x_2E, x_2E, PASSES, None)
    with pytest.raises(AssertionError, match="step 3: 2 tokens, announced were 1"):
        mlp.added_to(x_2E, x_2E, PASSES, StepShape(3, (1, 2)))


def test_a_size_that_does_not_divide_an_mlp_is_refused() -> None:
    attention = AttentionConfig(1, 1, HIDDEN)
    layers = (LayerConfig(attention, MlpConfig(96)), LayerConfig(attention, MlpConfig(80, field="moe_size")))
    config = replace(FakeRunner().config, layers=layers)
    check_divides(2, config)
    with pytest.raises(ConfigError, match="dp_size: got 3, expected a divisor of 80, the moe_size of"):
        check_divides(3, config)


class Together:
    """A process group of which every rank gives what this one gives."""

    def alltoall_base(self, taken: Tensor, given: Tensor, *_: object) -> "Together":
        taken.copy_(given)
        return self

    def wait(self) -> None:
        """It is over."""


class Held(TorchDispatchMode):  # type: ignore[misc]
    """The most bytes of memory that was taken within it and lived at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self._live = 0, dict[int, tuple[StorageWeakRef, int]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, Tensor):
                storage = StorageWeakRef(each.untyped_storage())
                self._live[storage.cdata] = storage, each.untyped_storage().nbytes()
        self._live = {at: held for at, held in self._live.items() if not held[0].expired()}
        self.most = max(self.most, sum(num_bytes for _, num_bytes in self._live.values()))
        return made


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("counts", ["all the same", "one has most"])
def test_the_rows_of_a_group_take_no_more_memory_than_is_counted(size: int, counts: str) -> None:
    """Beside the intermediate values, which a whole MLP would have of the own tokens alone."""
    most, hidden, each = 64, 512, 8
    by_rank = (most,) * size if counts == "all the same" else (most, *[most - 1] * (size - 1))
    config = replace(FakeRunner().config, hidden_size=hidden)
    linear = Linear(torch.ones(each, hidden, dtype=torch.bfloat16))
    ranks = TorchCollectives(Together(), GroupPlace("g", 1, 0, size), torch.device("cpu"))
    down = Linear(torch.ones(hidden, each, dtype=torch.bfloat16))
    mlp = Sharded(Mlp(ParallelLinears((linear, linear)), down), None, ranks)
    x_TE = torch.ones(most, hidden, dtype=torch.bfloat16)

    with torch.inference_mode(), Held() as held:
        mlp.added_to(x_TE, x_TE, PASSES, StepShape(1, by_rank))
    counted = group_bytes(config, "bfloat16", num_ranks=size, tokens=most)
    norms = 4 * most * hidden * (2 + 4)  # of the own rows, counted as activations, and not needed meanwhile
    intermediate = 3 * size * most * each * 2
    assert counted * 0.5 < held.most <= counted + norms + intermediate


def test_a_mixture_has_the_results_of_all_experts_of_a_row_beside_them() -> None:
    """As model/experts_triton.py holds them."""
    dense, router = FakeRunner().config, RouterConfig(num_chosen=8)
    feed = ExpertsConfig(16, router, MlpConfig(32))
    mixed = replace(dense, layers=(dense.layers[0], replace(dense.layers[0], feed=feed)))
    of_dense, of_mixed = (group_bytes(each, "bfloat16", num_ranks=4, tokens=100) for each in (dense, mixed))
    assert of_mixed - of_dense == 8 * 4 * 100 * dense.hidden_size * 2
