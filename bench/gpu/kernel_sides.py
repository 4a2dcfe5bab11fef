"""Times kernels beside others that do the same, in CUDA graphs of many runs, and compares their results.

It decides how many runs a graph has, and how many inputs, so that no run finds its input in a cache.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite, isnan
from typing import Final

import torch
from torch import Tensor

from bench.gpu.shape import maker_of_graphs
from bench.gpu.timing import Limits, seconds_in_turn
from runtime.model_config import ModelConfig

FEWEST_RUNS: Final = 10  # of a graph
MOST_RUNS: Final = 100
BANDWIDTH_SHARE: Final = 0.8  # of a device copy's: the goal of kernels that only move bytes


@dataclass(frozen=True)
class Size:
    """What is measured. The first decodes matter most."""

    rows: tuple[int, ...]
    eager_rows: tuple[int, ...]
    decodes: tuple[tuple[int, int], ...]  # batch and context
    judged_share: tuple[int, int]  # the decodes that read enough to reach the bandwidth
    prompts: tuple[int, ...]
    cold_bytes: int  # larger than any cache
    layers_bytes: int  # of KV of the layers that attention takes in turn
    graph_bytes: int  # that the runs of one graph move
    rounds: int
    replays: int
    part_s: float


@dataclass(frozen=True)
class Setup:
    """Where the kernels run, and for which model."""

    config: ModelConfig
    device: torch.device
    size: Size
    limits: Limits


def runs_for(num_bytes: int, graph_bytes: int) -> int:
    """The runs in a graph, if each moves so many bytes."""
    return max(FEWEST_RUNS, min(MOST_RUNS, graph_bytes // num_bytes))


def inputs_for(num_bytes: int, size: Size) -> int:
    """How many inputs of so many bytes do not fit into a cache together; at most one for each run of a graph."""
    return min(runs_for(num_bytes, size.graph_bytes), 1 + size.cold_bytes // num_bytes)


def timed(sides: Mapping[str, Callable[[int], object]], count: int, at: Setup) -> dict[str, float]:
    """Seconds of a run of each side in a graph of `count` runs. A side is called with the number of the run."""

    def repeated(run: Callable[[int], object]) -> None:
        for index in range(count):
            run(index)

    graphs = {}
    for name, run in sides.items():
        repeated(run)  # nothing may be compiled or loaded during the capture
        graphs[name] = maker_of_graphs(at.device)(partial(repeated, run))
    seconds_of = seconds_in_turn(graphs, at.size.rounds, at.size.replays, at.device)
    return {name: seconds / count for name, seconds in seconds_of.items()}


def relative_error(computed: Tensor, wanted: Tensor) -> float:
    """The norm of the difference over that of the wanted one; infinite with NaN."""
    error = float((computed.double() - wanted.double()).norm() / wanted.double().norm())
    return inf if isnan(error) else error


def shown(error: float) -> float | None:
    """As a cell of a table, which has finite numbers only."""
    return error if isfinite(error) else None
