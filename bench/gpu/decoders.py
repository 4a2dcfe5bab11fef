"""Workers in this process that decode, with graphs or without, and KV memory that they share; they are timed or traced.

Prompts are not computed: their KV is random.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from bench.gpu.shape import WithoutPrompts, captured, maker_of_graphs, noise
from bench.gpu.sheet import StepSheet
from bench.gpu.timing import ReplayedCudaStream
from bench.step.decoding import (
    PAGE_SIZE,
    Decoding,
    Plan,
    Replayed,
    ReplayedStream,
    Times,
    executor_on,
    num_pages,
    timed,
)
from model.graphs import GraphedRunner
from model.paged_kv import PagedKv
from model.runner import ModelRunner
from runtime.clock import MonotonicClock
from scheduler.execution.streams import InlineStream, Stream
from scheduler.execution.streams_cuda import CudaStream
from scheduler.execution.warm_up import warm_up

FREE_SHARE: Final = 0.9  # share of free device memory that KV may take


@dataclass(frozen=True)
class Case:
    """`batch` requests decode, with contexts from `plan`."""

    batch: int
    plan: Plan

    def __str__(self) -> str:
        return f"batch {self.batch}, context {self.plan.context:,}"


@dataclass(frozen=True)
class Way:
    """A way to decode: a runner, with graphs or without, and a worker with overlap, without, or one of each."""

    name: str
    runner: GraphedRunner
    overlaps: tuple[bool, ...] = (True, False)


@dataclass
class Decoder:
    """A worker of one way, started."""

    way: Way
    overlap: bool
    decoding: Decoding
    stream: Replayed


# ---- memory and graphs ----


def fits(sheet: StepSheet, runner: ModelRunner, case: Case) -> bool:
    """Whether the device has memory for the KV of this case. A note says so if it has not."""
    if runner.device.type == "cpu":
        return True
    needed = runner.kv_layout(PAGE_SIZE).pool_bytes(num_pages(runner, case.batch, case.plan.max_context))
    free, _ = torch.cuda.mem_get_info(runner.device)
    if needed <= free * FREE_SHARE:
        return True
    sheet.note(f"left out: {case}: its KV takes {needed / 1e9:,.0f} GB, more than the device has left")
    return False


def random_kv(runner: ModelRunner, cases: Iterable[Case]) -> PagedKv:
    """Memory with random numbers for the largest of these cases."""
    most = max(num_pages(runner, case.batch, case.plan.max_context) for case in cases)
    kv = PagedKv(runner.kv_layout(PAGE_SIZE), most, runner.device)
    noise(kv)
    return kv


def without_graphs(runner: ModelRunner) -> GraphedRunner:
    """Decodes kernel by kernel."""
    return WithoutPrompts(runner, maker_of_graphs(runner.device))


def with_graphs(runner: ModelRunner, kv: PagedKv, max_requests: int, max_context: int) -> GraphedRunner:
    """Graphs for up to so many requests, made for contexts of up to `max_context` tokens. RuntimeError without any."""
    own = without_graphs(runner)
    warm_up(
        own, kv, new_streams(runner.device)[0], max_requests=max_requests, max_pages=kv.layout.num_pages(max_context)
    )
    return captured(own)


# ---- workers ----


@contextmanager
def decoders(ways: Sequence[Way], kv: PagedKv, case: Case) -> Iterator[list[Decoder]]:
    """The workers of all ways, decoding. RuntimeError if one that has graphs has replayed none."""
    opened: list[Decoder] = []
    try:
        for way in ways:
            before = way.runner.num_replays
            opened += [_started(way, kv, case, overlap) for overlap in way.overlaps]
            if way.runner.max_graphed and way.runner.num_replays == before:
                raise RuntimeError(f"{way.name}: no graph was replayed")
        yield opened
    finally:
        for decoder in opened:
            decoder.decoding.executor.close()


def _started(way: Way, kv: PagedKv, case: Case, overlap: bool) -> Decoder:
    stream, schedule = new_streams(kv.device)
    executor = executor_on(kv, way.runner, case.batch, case.plan.max_context, stream, schedule)
    decoding = Decoding.on(executor, stream, MonotonicClock(), overlap=overlap)
    decoding.start(case.batch, case.plan.context, case.plan.num_tokens)
    return Decoder(way, overlap, decoding, stream)


def new_streams(device: torch.device) -> tuple[Replayed, Stream]:
    """A new forward stream, and the schedule stream of this thread."""
    if device.type == "cuda":
        return ReplayedCudaStream(device), CudaStream(torch.cuda.current_stream(device))
    return ReplayedStream(os.sched_getaffinity(0), 1, MonotonicClock()), InlineStream()


def times_of(opened: Sequence[Decoder], plan: Plan) -> dict[str, Times]:
    """By the names of ways: every worker in turn."""
    return timed({(decoder.way.name, decoder.overlap): (decoder.decoding, decoder.stream) for decoder in opened}, plan)
