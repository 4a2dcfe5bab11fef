"""The experts of one layer of Qwen3-30B-A3B's shape: the grouped product beside torch's way, one product per expert.

The grouped one runs in CUDA graphs of many runs on several inputs, as decodes do, and without. Torch's reads back how
many tokens each expert has, so that no graph can hold it. Results are compared, and tokens alone with those in a batch.
On a CPU torch's way stands in for the grouped product, and bits are not compared.
Shapes: T tokens, E hidden.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor

from bench.device_seconds import seconds_each
from bench.gpu.kernel_sides import Setup, relative_error, runs_for, shown, timed
from bench.gpu.shape import DTYPE, QWEN3_8B, TINY, config_of, random_runner, words_of_graphs
from bench.gpu.sheet import StepSheet
from bench.gpu.step_kernels import BOUNDS, SIZES, words_of_kernels
from bench.gpu.timing import Limits, measured_limits, why_it_waits
from bench.records import Value
from bench.step.decoding import PAGE_SIZE
from model.experts import Experts
from model.paged_kv import TORCH_DTYPES
from model.passes import Passes
from runtime.model_parts import ExpertsConfig

OF_EXPERTS: Final[Mapping[str, Any]] = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "cuda": {
        **QWEN3_8B, **OF_EXPERTS, "hidden_size": 2048, "num_hidden_layers": 1, "num_key_value_heads": 4,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
    },
    "cpu": {
        **TINY, **OF_EXPERTS, "num_hidden_layers": 1, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 48, "norm_topk_prob": True,
    },
}  # fmt: skip
ROWS: Final = {"cuda": (1, 32, 256, 2048), "cpu": (1, 5)}
INPUTS: Final = 8
PART_S: Final = 4.0
FLOOR_SHARE: Final = 0.6  # of the floor's time, where the bytes of the weights are the limit
ALONE: Final = 8  # tokens that are also computed alone
ABOUT: Final = (
    "Microseconds of all experts of one layer. *grouped*: in a graph of many runs; *eager*: without one. *hit*: experts"
    " that tokens have. *floor*: their weights read once at a device copy's rate, or the operations at that of a large"
    " product. *error*: the norm of the difference over that of torch's. *other bits*: tokens that alone have others."
)


@dataclass(frozen=True)
class Mixture:
    """The experts of one layer on the device, and how they are computed beside torch's way."""

    config: ExpertsConfig
    hidden: int
    grouped: Experts
    passes: Passes
    dtype: torch.dtype

    @classmethod
    def of(cls, device: str, dtype: str) -> "Mixture":
        """Random weights, as a worker holds them. RuntimeError without Triton on a GPU."""
        runner = random_runner(SHAPES[device], device, PAGE_SIZE, dtype=dtype)
        feed, config = runner.decoder.layers[0].feed, runner.config.layers[0].feed
        assert isinstance(feed, Experts) and isinstance(config, ExpertsConfig)
        if device == "cuda" and type(feed) is Experts:
            raise RuntimeError("Triton is not installed: experts are not grouped here")
        return cls(config, runner.config.hidden_size, feed, runner.decoder.passes, TORCH_DTYPES[dtype])

    @property
    def plain(self) -> Experts:
        """The same experts, one by one."""
        return Experts(self.grouped.router, self.grouped.experts, self.grouped.shared)

    def tokens(self, rows: int) -> Tensor:
        """Random tokens."""
        return torch.randn(rows, self.hidden, device=self.grouped.router.weight_XE.device).to(self.dtype)

    def hit(self, x_TE: Tensor) -> int:
        """How many experts have tokens."""
        return int(self.grouped.router(x_TE)[0].unique().numel())

    @property
    def expert_weights(self) -> int:
        """The number of weights of one expert."""
        return 3 * self.hidden * self.config.expert.width

    def floor_s(self, rows: int, hit: int, limits: Limits) -> float:
        """The least time for so many tokens with so many experts together."""
        operations = 2.0 * rows * self.config.router.num_chosen * self.expert_weights
        read = hit * self.expert_weights * self.dtype.itemsize
        return max(read / limits.copy_bytes_s, operations / limits.product_flops_s)


def measure_experts(sheet: StepSheet, device: str) -> None:
    """Runs the step `experts`."""
    where = torch.device(device)
    at = Setup(config_of(SHAPES[device]), where, replace(SIZES[device], rows=ROWS[device]), measured_limits(where))
    mixtures = {dtype: Mixture.of(device, dtype) for dtype in BOUNDS}
    config = mixtures[DTYPE].config
    sheet.note(
        f"{words_of_kernels(device)}, {words_of_graphs(device)}, {config.count} experts of {config.expert.width},"
        f" {config.router.num_chosen} for a token, hidden {mixtures[DTYPE].hidden:,}, {DTYPE}; {at.limits.words}"
    )
    for rows in at.size.rows:
        sheet.part(f"experts, rows {rows:,}", PART_S, partial(_experts, sheet, at, mixtures, rows))


@torch.inference_mode()
def _experts(sheet: StepSheet, at: Setup, mixtures: Mapping[str, Mixture], rows: int) -> None:
    """Compares in both dtypes, then times in that of the model."""
    cells: dict[str, Value] = {"rows": rows}
    for dtype, mixture in mixtures.items():
        x_TE = mixture.tokens(rows)
        error = relative_error(*(side(x_TE, mixture.passes).float() for side in (mixture.grouped, mixture.plain)))
        changed = others_alone(mixture, x_TE) if type(mixture.grouped) is not Experts else None
        if error > BOUNDS[dtype] or changed:
            sheet.fault(f"experts, {rows:,} rows, {dtype}: off by {error:.3g}; tokens with other bits alone: {changed}")
        cells |= {f"error, {dtype}": shown(error), f"other bits, {dtype}": changed}

    own = mixtures[DTYPE]
    inputs = [own.tokens(rows) for _ in range(INPUTS)]
    if waits := why_it_waits(lambda: own.grouped(inputs[0], own.passes), at.device):
        sheet.fault(f"experts, {rows:,} rows: the host waits for the device: {waits}")
    hit = own.hit(inputs[0])
    runs = runs_for(hit * own.expert_weights * own.dtype.itemsize, at.size.graph_bytes)
    [grouped_s] = timed({"grouped": lambda run: own.grouped(inputs[run % INPUTS], own.passes)}, runs, at).values()
    eager_s, torch_s = (
        median(seconds_each(partial(side, inputs[0], own.passes), 20, at.device)) for side in (own.grouped, own.plain)
    )

    floor_s = own.floor_s(rows, hit, at.limits)
    cells |= {"hit": hit, "grouped": grouped_s * 1e6, "grouped, eager": eager_s * 1e6, "torch, eager": torch_s * 1e6}
    cells |= {"torch / grouped": torch_s / grouped_s, "floor": floor_s * 1e6, "floor / grouped": floor_s / grouped_s}
    sheet.row("Experts", cells, ABOUT)
    sheet.goal(f"experts, {rows:,} rows: torch / grouped", torch_s / grouped_s, "at least", 1.0)
    if rows == at.size.rows[1]:
        sheet.goal(f"experts, {rows:,} rows: floor / grouped", floor_s / grouped_s, "at least", FLOOR_SHARE)


def others_alone(mixture: Mixture, x_TE: Tensor) -> int:
    """How many of the first tokens have other bits alone than beside all."""
    together_TE = mixture.grouped(x_TE, mixture.passes)[:ALONE]
    alone = [mixture.grouped(x_1E, mixture.passes)[0] for x_1E in x_TE[:ALONE].split(1)]
    return sum(not torch.equal(one, row) for one, row in zip(alone, together_TE, strict=True))
