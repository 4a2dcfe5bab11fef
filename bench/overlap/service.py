"""Where a decode step of a worker spends its time: WorkerLoop with real sockets, and its parts alone in the same run.

    step       from one launch's end to the next, in a worker whose gateway is another process (front.py)
    forward    of a launch: on the forward thread, products + attention + the rest + the waits below
    threads    waking helpers and waiting for them; the interpreter's lock; other processes on the thread's core

Products and attention are timed alone, on the thread's CPU clock, so the rest has what a launch computes beside them.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import zmq

from bench.overlap.decoding import EVERY_TOKEN, WARM_STEPS, executor_of, planner_of
from model.attention_cpu import CpuAttention
from model.cpu_kernels import CpuKernels
from model.inputs import ModelInput
from model.mlp import Mlp
from model.runner import ModelRunner
from protocol.messages_gateway import Register, Role, WorkerAddress
from runtime.bus import Dealer, Wake
from runtime.clock import MonotonicClock
from runtime.process_life import StopSignal
from scheduler.execution.executor import Executor
from scheduler.execution.streams import FORWARD_NICENESS, HostStream, Segment
from scheduler.execution.thread_choice import EVERY_ROW, wake_beside_layers
from unified.worker import UnifiedWorker
from worker.gateway_link import GatewayLink
from worker.loop import WorkerLoop
from worker.parts import PeerLink

ROUND = 20  # steps that are summed up; medians are of rounds


@dataclass(frozen=True)
class Where:
    """Milliseconds of one step, medians of rounds."""

    step_ms: float
    launch_ms: float  # the forward thread from a launch's first segment to its last one
    products_ms: float
    attention_ms: float
    rest_ms: float
    threads_ms: float  # of the launch, waking helpers and waiting for them
    interpreter_ms: float  # the forward thread slept, and not for a helper
    others_ms: float  # the forward thread could run, but its core ran something else
    alone_ms: float  # the same launch again and again, without a scheduler
    read_ms: float  # reading an array of the weights' size, with as many threads


@dataclass(frozen=True)
class Reading:
    """What a thread has used so far, in seconds."""

    launches: int
    launch_s: float
    cpu_s: float
    queued_s: float
    waited_s: float
    slept_s: float


class Enough(Exception):
    """All steps are measured."""


class ProbedStream(HostStream):
    """A HostStream that adds up what its launches take."""

    def __init__(self, wake: Callable[[], None], waited: Callable[[], tuple[float, float]]) -> None:
        self.num, self._launch_s, self._cpu_s = 0, 0.0, 0.0
        self._waited = waited
        self._last: Callable[[], None] = lambda: None
        super().__init__("forward", wake, FORWARD_NICENESS)

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Like HostStream's, between two looks at the clocks."""

        def run() -> None:
            for segment in segments:
                segment(*used)

        def probed() -> None:
            start, cpu = time.perf_counter(), time.thread_time()
            run()
            self._cpu_s += time.thread_time() - cpu
            self._launch_s += time.perf_counter() - start
            self.num += 1

        self._last = run
        super().launch([probed])

    def read(self) -> Reading:
        """The sums so far. Called on any thread."""
        schedstat = Path(f"/proc/self/task/{self._thread.native_id}/schedstat").read_text().split()
        return Reading(self.num, self._launch_s, self._cpu_s, int(schedstat[1]) / 1e9, *self._waited())

    def timed(self, work: Callable[[], object], times: int, clock: Callable[[], float]) -> float:
        """Median seconds of `work` on the stream's thread, by `clock`."""
        found: list[float] = []

        def run() -> None:
            with torch.inference_mode():
                start = clock()
                work()
                found.append(clock() - start)

        super().launch([run] * times)
        self.record().synchronize()
        return median(found)

    def replay(self, times: int) -> float:
        """Median seconds of the last launch, again and again."""
        return self.timed(self._last, times, time.perf_counter)


class Watched(UnifiedWorker):
    """Looks at the stream after every ROUND launches, once all requests decode; raises Enough at the end."""

    def watch(self, stream: ProbedStream, batch: int, rounds: int) -> None:
        """Called before the first step."""
        self._stream, self._batch, self._rounds = stream, batch, rounds
        self.seen: list[tuple[float, Reading]] = []
        self._next = 0

    def step(self) -> bool:
        """See UnifiedWorker."""
        progressed = super().step()
        if self.planner.roster.num_going_on < self._batch or self._computing:
            self._next = self._stream.num + WARM_STEPS
        elif self._stream.num >= self._next:
            self.seen.append((time.perf_counter(), self._stream.read()))
            self._next = self._stream.num + ROUND
            if len(self.seen) > self._rounds:
                raise Enough
        return progressed


def where(runner: ModelRunner, batch: int, context: int, rounds: int, *, alone: bool) -> Where:
    """The table's line of a batch. `alone`: decodes use one thread, else all."""
    kernels = runner.attention.kernels if isinstance(runner.attention, CpuAttention) else None
    waited = kernels.waited_s if isinstance(kernels, CpuKernels) else lambda: (0.0, 0.0)
    runner.threads.alone_up_to = EVERY_ROW if alone else 0
    outputs = WARM_STEPS + (ROUND + 4) * (rounds + 2)
    wake = Wake()
    stream = ProbedStream(wake.set, waited)
    executor = executor_of(runner, batch, context + outputs, stream)
    wake_beside_layers(runner, stream)

    try:
        seen = _serve(runner, executor, stream, wake, (batch, context, outputs), rounds)
        stream.record().synchronize()
        alone_s = stream.replay(3 * ROUND)
        parts = [stream.timed(part, ROUND, time.thread_time) for part in _parts(runner, executor, batch, context)]
    finally:
        executor.close()
        wake.close()
    return _summed(seen, alone_s, parts, _read_s(runner.private_weight_bytes + runner.mapped_weight_bytes, alone=alone))


def _serve(
    runner: ModelRunner,
    executor: Executor,
    stream: ProbedStream,
    wake: Wake,
    load: tuple[int, int, int],
    rounds: int,
) -> list[tuple[float, Reading]]:
    """Serves the load's requests (batch, context, outputs) until enough steps are measured."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    worker = Watched(planner_of(executor), "bench", MonotonicClock(), overlap=True, chunk_size=EVERY_TOKEN)
    worker.watch(stream, load[0], rounds)
    address, layout = WorkerAddress("bench", 1), executor.kv.layout
    register = Register(
        address, Role.UNIFIED, os.getpid(), "bench", layout, runner.fingerprint(), runner.config.vocab_size,
        runner.config.context_length, load[0], layout.pool_tokens(executor.kv.num_pages), worker.stats(), "",
    )  # fmt: skip

    with _front((*load, runner.config.vocab_size)) as endpoint, StopSignal() as stop:
        gateway = Dealer(context, endpoint, b"bench#1")
        clock = MonotonicClock()
        to_gateway = GatewayLink(gateway, clock)
        loop = WorkerLoop(worker, PeerLink(), to_gateway, register, wake, stop, clock, on_ready=lambda: None)
        try:
            loop.run()
        except Enough:
            return worker.seen
        finally:
            gateway.close()
            context.term()
    raise AssertionError("the worker has left before all steps were measured")


@contextmanager
def _front(load: tuple[int, ...]) -> Iterator[str]:
    """The gateway's process. Yields the address that the worker dials."""
    command = [sys.executable, "-m", "bench.overlap.front", *map(str, load)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def _summed(seen: list[tuple[float, Reading]], alone_s: float, parts: list[float], read_s: float) -> Where:
    products_s, attention_s = parts
    rows = []
    for (start, before), (end, after) in pairwise(seen):
        steps = after.launches - before.launches
        step_s, launch, cpu, queued, waited, slept = (
            each / steps
            for each in (end - start, *(getattr(after, f.name) - getattr(before, f.name) for f in fields(Reading)[1:]))
        )
        interpreter = max(0.0, launch - cpu - queued - slept)
        rest = max(0.0, cpu - (waited - slept) - products_s - attention_s)
        rows.append((step_s, launch, products_s, attention_s, rest, waited, interpreter, queued))
    medians = [median(column) for column in zip(*rows, strict=True)]
    return Where(*(round(value * 1e3, 3) for value in (*medians, alone_s, read_s)))


def _parts(runner: ModelRunner, executor: Executor, batch: int, context: int) -> list[Callable[[], object]]:
    """All products of a decode step, and the attention of all its layers."""
    config, decoder, kv = runner.config, runner.decoder, executor.kv
    q_size = config.num_heads * config.head_dim
    dtype = decoder.final_norm_E.dtype
    by_hidden, by_query, by_inner = (
        torch.randn(batch, size).to(dtype) for size in (config.hidden_size, q_size, config.intermediate_size)
    )

    def products() -> None:
        for layer in decoder.layers:
            assert isinstance(layer.mlp, Mlp)
            layer.qkv(by_hidden)
            layer.output.added_to(by_hidden, by_query)
            layer.mlp.gate_up(by_hidden)
            layer.mlp.down.added_to(by_hidden, by_inner)
        decoder.head(by_hidden)

    pages = kv.layout.num_pages(context)
    ids_B = torch.arange(batch)
    inp = ModelInput(
        ids_B, ids_B, ids_B, 1 + torch.arange(batch * pages).view(batch, pages), torch.full((batch,), context),
        (), (), batch, context, ids_B,
    )  # fmt: skip
    plan = runner.attention.plan(inp, kv.layout.layer(0))
    q_THD = by_query.view(batch, config.num_heads, config.head_dim)

    def attention() -> None:
        for layer in range(config.num_layers):
            runner.attention.attend(q_THD, kv.layer(layer), plan)

    return [products, attention]


def _read_s(num_bytes: int, *, alone: bool) -> float:
    """Seconds to read so many bytes: the fastest of ROUND times."""
    array, before, found = torch.ones(num_bytes // 8, dtype=torch.int64), torch.get_num_threads(), []
    torch.set_num_threads(1 if alone else before)
    try:
        for _ in range(ROUND):
            start = time.perf_counter()
            array.sum()
            found.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return min(found)


COLUMNS = tuple(each.name.removesuffix("_ms") for each in fields(Where))
