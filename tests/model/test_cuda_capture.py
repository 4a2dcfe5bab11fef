"""A capture that the driver does not end: with doubles of torch's graphs, and on a GPU."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from model.cuda_capture import CudaCapture, Run
from model.graphs import GraphedRunner
from model.paged_kv import PagedKv
from protocol.errors import ConfigError
from scheduler.execution.streams import InlineStream
from scheduler.execution.warm_up import warm_up
from tests.doubles.hash_model import FakeRunner

ROOT = Path(__file__).resolve().parents[2]


class Driver:
    """Stands for torch's graphs. `ends`: whether it ends captures in which `run` has failed."""

    def __init__(self, *, ends: bool) -> None:
        self.ends, self.has_ended = ends, False

    @contextmanager
    def capturing(self, graph: Any, **_: Any) -> Iterator[None]:
        """As `torch.cuda.graph`: it ends the capture whether or not `run` has raised."""
        try:
            yield
        finally:
            if not self.ends:
                raise RuntimeError("a previous error during capture")
            self.has_ended = True

    def graph(self) -> Any:
        """As `torch.cuda.CUDAGraph`."""
        return self

    def pool(self) -> tuple[int, int]:
        """As a graph's."""
        if not self.has_ended:
            raise RuntimeError("pool() without a successful capture")
        return (1, 0)

    def replay(self) -> None:
        """As a graph's."""


def driver(monkeypatch: pytest.MonkeyPatch, *, ends: bool) -> Driver:
    double = Driver(ends=ends)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", double.graph)
    monkeypatch.setattr(torch.cuda, "graph", double.capturing)
    return double


def fails() -> None:
    raise RuntimeError("not permitted when a stream is capturing\nand advice")


def test_an_error_of_the_run_passes_through_if_the_capture_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, ends=True)
    with pytest.raises(RuntimeError, match="not permitted") as raised:
        CudaCapture()(fails)
    assert not isinstance(raised.value, ConfigError)


def test_a_capture_that_was_not_ended_is_refused_with_the_first_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, ends=False)
    with pytest.raises(ConfigError, match=r"captured as CUDA graphs: not permitted .* capturing; expected") as raised:
        CudaCapture()(fails)
    assert raised.value.param == "disable-cuda-graph"
    with pytest.raises(ConfigError, match=r"graphs: a previous error during capture; expected"):
        CudaCapture()(lambda: None)


def test_a_worker_whose_capture_was_not_ended_does_not_start() -> None:
    """Every other failure leaves it without graphs."""

    def unended(run: Run) -> Run:
        raise ConfigError("not ended", param="disable-cuda-graph")

    runner = GraphedRunner(FakeRunner(context_length=64), unended)
    with pytest.raises(ConfigError, match="not ended"):
        warm_up(runner, PagedKv(runner.kv_layout(4), 9), InlineStream(), max_requests=2, max_pages=4)


SCRIPT = """
import torch
from model.cuda_capture import CudaCapture
from protocol.errors import ConfigError

on_device = torch.ones(3, device="cuda")
try:
    with torch.cuda.stream(torch.cuda.Stream()):
        CudaCapture()(lambda: on_device.sum().item())
except ConfigError as error:
    print(f"refused: {error.message}", flush=True)
"""


@pytest.mark.gpu
def test_a_run_that_reads_back_is_refused_on_a_gpu() -> None:
    """A process of its own: its allocator counts the capture for ever."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("refused: decodes cannot be captured as CUDA graphs: "), done.stderr
