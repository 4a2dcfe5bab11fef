"""What grouped experts must give on any device: what the experts give one by one, and the same bits in any batch."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model.experts import Experts, Router
from model.linear import Linear, ParallelLinears
from model.mlp import Clamped, Mlp
from model.paged_kv import TORCH_DTYPES
from model.passes import TorchPasses
from runtime.model_parts import RouterConfig

PASSES = TorchPasses(1, 2, 1e-6)
CLOSE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 2e-2}  # of the norm of what torch gives, and its share of it
FAVOURED, AVOIDED = 100.0, -100.0  # biases of the choice, beside scores below 1

Group = Callable[[Experts], Experts]


@dataclass(frozen=True)
class ExpertsCase:
    """A mixture and its tokens. `routes` random, or skewed: all tokens have expert 1, and none the last two."""

    num_experts: int
    num_chosen: int
    hidden: int
    width: int
    num_tokens: int
    routes: str = "random"
    gate: str = "silu"  # silu | clamped: with biases, as gpt-oss has them
    is_merged: bool = True  # gate and up are one linear, as on a GPU
    is_shared: bool = False
    is_later_rank: bool = (
        False  # the biases of the outputs are the first rank's, and weights are cut out of larger ones
    )

    def __str__(self) -> str:
        parts = [f"{self.num_tokens} of {self.num_chosen}-{self.num_experts} {self.hidden}x{self.width}", self.routes]
        named = {"merged": self.is_merged, "shared": self.is_shared, "later rank": self.is_later_rank}
        return " ".join((*parts, self.gate, *(name for name, is_so in named.items() if is_so)))

    def mixture(self, dtype: str, device: torch.device) -> Experts:
        """The mixture in torch."""
        generator = torch.Generator(device).manual_seed(self.num_experts * self.hidden + self.width)

        def numbers(*shape: int, scale: float = 1.0) -> Tensor:
            return (scale * torch.randn(shape, generator=generator, device=device)).to(TORCH_DTYPES[dtype])

        bias_X = torch.zeros(self.num_experts)
        if self.routes == "skewed":
            bias_X[1], bias_X[-2:] = FAVOURED, AVOIDED
        config = RouterConfig(self.num_chosen, "sigmoid", has_choice_bias=True)
        weight_XE = torch.randn(self.num_experts, self.hidden, generator=generator, device=device).double()
        router = Router(config, weight_XE, bias_X.to(device))

        def mlp(width: int, gate: str, *, is_merged: bool) -> Mlp:
            is_clamped = gate == "clamped"
            rows = [numbers(width, self.hidden, scale=2 * self.hidden**-0.5) for _ in range(2)]
            biases = [numbers(width) if is_clamped else None for _ in range(2)]
            down_EI = numbers(self.hidden, width + self.is_later_rank, scale=width**-0.5)[:, int(self.is_later_rank) :]
            bias_E = numbers(self.hidden) if is_clamped and not self.is_later_rank else None
            linears = tuple(map(Linear, rows, biases))
            if is_merged:
                known = [bias for bias in biases if bias is not None]
                linears = (Linear(torch.cat(rows), torch.cat(known) if known else None),)
            return Mlp(ParallelLinears(linears), Linear(down_EI, bias_E), Clamped(1.5, 1.702) if is_clamped else None)

        experts = tuple(mlp(self.width, self.gate, is_merged=self.is_merged) for _ in range(self.num_experts))
        return Experts(router, experts, mlp(2 * self.width, "silu", is_merged=False) if self.is_shared else None)

    def tokens(self, dtype: str, device: torch.device) -> Tensor:
        """(T, E)."""
        generator = torch.Generator(device).manual_seed(self.num_tokens)
        shape = self.num_tokens, self.hidden
        return torch.randn(shape, generator=generator, device=device).to(TORCH_DTYPES[dtype])


class RowByRow(Router):
    """A router that gives a token the same weights beside any others: torch's sigmoid on a CPU may not."""

    def __call__(self, x_TE: Tensor) -> tuple[Tensor, Tensor]:
        chosen, weights = zip(*[super(RowByRow, self).__call__(x_1E) for x_1E in x_TE.split(1)], strict=True)
        return torch.cat(chosen), torch.cat(weights)


CASES = (
    ExpertsCase(8, 2, 64, 48, 1),
    ExpertsCase(8, 2, 64, 48, 0, is_shared=True),
    ExpertsCase(8, 2, 64, 48, 33, is_shared=True),
    ExpertsCase(4, 4, 37, 29, 20, gate="clamped"),  # every token has every expert; no size is a multiple of another
    ExpertsCase(9, 3, 33, 65, 66, "skewed"),
    ExpertsCase(9, 3, 50, 17, 40, "skewed", gate="clamped", is_merged=False),
    ExpertsCase(8, 2, 24, 15, 40, gate="clamped", is_later_rank=True),
    ExpertsCase(5, 1, 16, 1, 3, is_merged=False),
    ExpertsCase(6, 1, 20, 16, 70, "skewed"),  # all tokens have one expert
    ExpertsCase(40, 8, 32, 16, 2),
)
LARGE = (  # too large for the interpreter
    ExpertsCase(128, 8, 2048, 768, 1),
    ExpertsCase(128, 8, 2048, 768, 33),
    ExpertsCase(128, 8, 2048, 768, 300, "skewed"),
    ExpertsCase(32, 4, 2880, 2880, 65, gate="clamped"),
    ExpertsCase(8, 2, 1024, 3584, 517, is_shared=True),
)


def random_case(seed: int) -> ExpertsCase:
    """A small mixture of any sizes."""
    rng = random.Random(f"experts {seed}")
    count = rng.randint(3, 8)
    return ExpertsCase(
        count,
        rng.randint(1, count - 2),
        rng.randint(1, 50),
        rng.randint(1, 50),
        rng.choice((1, 2, rng.randint(3, 15), rng.randint(20, 60))),
        rng.choice(("random", "skewed")),
        rng.choice(("silu", "clamped")),
        *(rng.random() < 0.5 for _ in range(3)),
    )


def check_experts(group: Group, case: ExpertsCase, dtype: str, device: torch.device) -> None:
    """Beside the experts one by one."""
    mixture, x_TE = case.mixture(dtype, device), case.tokens(dtype, device)
    wanted_TE, found_TE = mixture(x_TE, PASSES), group(mixture)(x_TE, PASSES)
    assert found_TE.dtype == x_TE.dtype and found_TE.shape == x_TE.shape
    if case.num_tokens:
        scale = float(wanted_TE.float().norm()) / wanted_TE.numel() ** 0.5
        torch.testing.assert_close(found_TE, wanted_TE, rtol=CLOSE[dtype], atol=CLOSE[dtype] * max(1.0, scale))


def check_rows(group: Group, case: ExpertsCase, dtype: str, device: torch.device, num_alone: int = 8) -> None:
    """Each token has the same bits in a part of the batch, and behind other tokens; and so many of them have alone.

    There is no shared expert, which is a product of torch's.
    """
    case = replace(case, is_shared=False, num_tokens=max(1, case.num_tokens))
    mixture, x_TE = case.mixture(dtype, device), case.tokens(dtype, device)
    router = mixture.router
    grouped = group(replace(mixture, router=RowByRow(router.config, router.weight_XE, router.choice_bias_X)))
    whole_TE = grouped(x_TE, PASSES)
    for index in range(0, case.num_tokens, -(-case.num_tokens // num_alone)):
        assert torch.equal(grouped(x_TE[index : index + 1], PASSES)[0], whole_TE[index]), f"token {index} alone"
    half = case.num_tokens // 2
    assert torch.equal(grouped(x_TE[half:], PASSES), whole_TE[half:])
    assert torch.equal(grouped(x_TE.flip(0), PASSES).flip(0), whole_TE)


def check_not_finite(group: Group, device: torch.device) -> None:
    """Tokens with NaN or infinities give NaN, as with torch, and change no other token."""
    case = ExpertsCase(6, 2, 20, 24, 9, gate="clamped")
    mixture, x_TE = case.mixture("float32", device), case.tokens("float32", device)
    grouped = group(mixture)
    clean_TE = grouped(x_TE, PASSES)
    x_TE[3, 4], x_TE[7, 0] = torch.nan, torch.inf
    found_TE, wanted_TE = grouped(x_TE, PASSES), mixture(x_TE, PASSES)
    assert wanted_TE[3].isnan().all(), "a token is not finite"
    assert torch.equal(found_TE.isnan(), wanted_TE.isnan())
    finite = [0, 1, 2, 4, 5, 6, 8]
    torch.testing.assert_close(found_TE[finite], clean_TE[finite], rtol=1e-5, atol=1e-5)
