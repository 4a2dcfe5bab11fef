"""Workers that decode the shape on a device, to be timed: with and without graphs, with and without overlap.

All share one KV memory, which holds random numbers.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from bench.gpu.shape import WithoutPrompts, maker_of_graphs, noise
from bench.gpu.timing import ReplayedCudaStream
from bench.overlap.decoding import PAGE_SIZE, Decoding, Plan, Replayed, ReplayedStream, executor_on, num_pages
from model.graphs import GraphedRunner
from model.paged_kv import PagedKv
from model.runner import ModelRunner
from runtime.clock import MonotonicClock
from scheduler.execution.streams import InlineStream, Stream
from scheduler.execution.streams_cuda import CudaStream
from scheduler.execution.warm_up import warm_up


@dataclass
class Decoder:
    """One way to decode, started."""

    graphs: bool
    overlap: bool
    decoding: Decoding
    stream: Replayed


@contextmanager
def decoders(
    runner: ModelRunner, batch: int, plan: Plan, graphs: tuple[bool, ...] = (True, False)
) -> Iterator[list[Decoder]]:
    """For each way of `graphs`, a worker with overlap and one without, decoding `batch` requests of the plan."""
    kv = PagedKv(runner.kv_layout(PAGE_SIZE), num_pages(runner, batch, plan.max_context), runner.device)
    noise(kv)

    found: list[Decoder] = []
    try:
        for with_graphs in graphs:
            own = WithoutPrompts(runner, maker_of_graphs(runner.device))
            if with_graphs:
                max_pages = kv.layout.num_pages(plan.max_context)
                warm_up(own, kv, new_stream(runner.device), max_requests=batch, max_pages=max_pages)
            found += [_started(own, kv, batch, plan, with_graphs, overlap) for overlap in (True, False)]
            if with_graphs and not own.num_replays:
                raise RuntimeError("no graphs could be captured; the log says why")

        yield found
    finally:
        for each in found:
            each.decoding.executor.close()


def _started(runner: GraphedRunner, kv: PagedKv, batch: int, plan: Plan, graphs: bool, overlap: bool) -> Decoder:
    stream, device = new_stream(runner.device), runner.device
    schedule: Stream = CudaStream(torch.cuda.current_stream(device)) if device.type == "cuda" else InlineStream()
    executor = executor_on(kv, runner, batch, plan.max_context, stream, schedule)
    decoding = Decoding.on(executor, stream, MonotonicClock(), overlap=overlap)
    decoding.start(batch, plan.context, plan.num_tokens)
    return Decoder(graphs, overlap, decoding, stream)


def new_stream(device: torch.device) -> Replayed:
    """A new forward stream."""
    if device.type == "cuda":
        return ReplayedCudaStream(device)
    return ReplayedStream(os.sched_getaffinity(0), 1, MonotonicClock())
