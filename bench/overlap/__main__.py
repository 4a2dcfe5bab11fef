"""`python -m bench.overlap`: how much host work overlap hides in a decode step, and what a step costs the host.

    forward    the launches of a step again and again, alone
    overlap    a unified worker that decodes, two launches in flight
    serial     the same worker with one launch in flight

The forward has one core and the host another; then the forward has two threads and nothing is pinned. kinds.py lists
the requests. Then the host's part of a step is measured with a model that computes nothing. With --where, it measures
where a step of a worker with sockets spends its time instead (service.py). The last line of output is one JSON object.
The process has a worker's environment. On a GPU, `make gpu STEP=decode` measures a step.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.overlap.decoding import PAGE_SIZE, WARM_STEPS, Decoding, Plan, ReplayedStream, executor_of, pin, planner_of
from bench.overlap.kinds import GREEDY, KINDS, Guests, Kind
from bench.overlap.service import COLUMNS, Where, where
from bench.turns import in_turn
from loadtest.bench_model import bench_model
from model.fake import FakeRunner
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.runner import ModelRunner, Runner
from protocol.messages_gateway import TO_GATEWAY, Assign
from runtime.clock import Clock, MonotonicClock
from runtime.process_life import thread_environment
from scheduler.execution.streams import InlineStream, Segment
from unified.worker import UnifiedWorker

AS_WORKER = "BATON_BENCH_AS_WORKER"  # in the environment: this process has been started as a worker is
SCHEDULED = (1, 8, 16, 32, 64, 128, 256)  # batch sizes for the cost of scheduling


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds of one decode step, medians over rounds."""

    forward_ms: float
    overlap_ms: float
    serial_ms: float


def measure(runner: Runner, batch: int, plan: Plan, num_threads: int, kind: Kind = GREEDY) -> StepTimes:
    """Both sides alternate; after each round its last launch is timed alone. With one thread, the forward has one core
    and the host another, if there are two."""
    cores = sorted(os.sched_getaffinity(0))
    is_pinned = num_threads == 1 and len(cores) > 1
    forward_cores = {cores[0]} if is_pinned else set(cores)
    if is_pinned:
        pin({cores[1]})

    clock = MonotonicClock()
    streams = [ReplayedStream(forward_cores, num_threads, clock) for _ in range(2)]
    room = kind.num_requests(batch)
    sides = [
        Decoding.on(executor_of(runner, room, plan.max_context, stream), stream, clock, overlap=overlap)
        for stream, overlap in zip(streams, (True, False), strict=True)
    ]

    steps: dict[int, list[float]] = {0: [], 1: []}
    forwards: list[float] = []

    try:
        for side in sides:
            side.start(batch, plan.context, plan.num_tokens, kind)
        for turn in range(plan.rounds):
            for index in in_turn((0, 1), turn):
                steps[index].append(sides[index].run(plan.steps))
                streams[index].record().synchronize()
                forwards.append(median(streams[index].replay(plan.steps)))
    finally:
        for side in sides:
            side.executor.close()
        pin(set(cores))

    return StepTimes(*(round(median(each) * 1e3, 3) for each in (forwards, steps[0], steps[1])))


@dataclass(frozen=True)
class NoModel(FakeRunner):
    """Computes nothing: every token gets the same score."""

    def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """Logits (L, V), all zero."""
        return torch.zeros(1, 1).expand(inp.logit_indices_L.shape[0], self.vocab_size)


class CountedStream(InlineStream):
    """Runs launches at once, and adds up their time, in which a device would run beside the host."""

    def __init__(self, clock: Clock) -> None:
        self.spent_s = 0.0
        self._clock = clock

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """See InlineStream."""
        start = self._clock.now()
        super().launch(segments, *used)
        self.spent_s += self._clock.now() - start


def schedule_cost(batch: int, plan: Plan, kind: Kind = GREEDY) -> tuple[float, float]:
    """(microseconds of the host in one step, microseconds to encode its messages), medians."""
    steps, encodings = host_times(batch, plan, kind)
    return round(median(steps) * 1e6, 1), round(median(encodings) * 1e6, 1)


def host_times(
    batch: int, plan: Plan, kind: Kind = GREEDY, page_size: int = PAGE_SIZE
) -> tuple[list[float], list[float]]:
    """Seconds of the host in each step, and seconds to encode the messages of each.

    All runs on this thread; the forward stream's time is subtracted.
    """
    clock = MonotonicClock()
    stream = CountedStream(clock)
    executor = executor_of(NoModel(), kind.num_requests(batch), plan.max_context, stream, page_size=page_size)
    planner = planner_of(executor)
    worker = UnifiedWorker(planner, "bench", clock, overlap=True, chunk_size=1 << 20)

    params = kind.params(plan.num_tokens)
    for index in range(batch):
        worker.on_gateway(
            Assign(
                request_id=f"r{index}",
                attempt=0,
                prompt_ids=(1,) * plan.context,
                sampling=params,
                num_choices=1,
                prefill=None,
            )
        )

    for _ in range(WARM_STEPS):
        worker.step()
    worker.outbox.gateway.clear()

    guests = Guests(worker.on_gateway, params)
    steps, encodings = [], []
    for _ in range(plan.steps * plan.rounds):
        stream.spent_s, start = 0.0, clock.now()
        if kind.joins:
            guests.change(planner.num_launches)
        worker.step()
        stepped = clock.now()
        for message in worker.outbox.gateway:
            TO_GATEWAY.encode(message)
        steps.append(stepped - start - stream.spent_s)
        encodings.append(clock.now() - stepped)
        worker.outbox.gateway.clear()

    assert worker.stats().running == batch + len(guests), "no request has ended: every step had the whole batch"
    return steps, encodings


def show(
    console: Console,
    times: dict[int, dict[int, StepTimes]],
    kinds: dict[str, tuple[StepTimes, float]],
    costs: dict[int, tuple[float, float]],
    about: str,
) -> None:
    """Prints the tables and a line of JSON. `kinds` also has the host's microseconds of a step."""

    console.print(about)

    for num_threads, by_batch in times.items():
        title = "forward on one core, host on another" if num_threads == 1 else f"forward on {num_threads} threads"
        table = Table(
            "batch", "forward ms", "overlap ms", "serial ms", "overlap / forward", "overlap / serial", title=title
        )
        for batch, each in by_batch.items():
            ratios = (each.overlap_ms / each.forward_ms, each.overlap_ms / each.serial_ms)
            numbers = (each.forward_ms, each.overlap_ms, each.serial_ms)
            table.add_row(str(batch), *(f"{ms:.2f}" for ms in numbers), *(f"{ratio:.2f}" for ratio in ratios))
        console.print(table)

    table = Table("what is asked", "forward ms", "overlap ms", "serial ms", "schedule us", title="requests of a kind")
    for name, (each, schedule_us) in kinds.items():
        numbers = (each.forward_ms, each.overlap_ms, each.serial_ms)
        table.add_row(name, *(f"{ms:.2f}" for ms in numbers), f"{schedule_us:.0f}")
    console.print(table)

    table = Table("batch", "schedule us", "encode us", title="the host's part of a step, without a model")
    for batch, (schedule_us, encode_us) in costs.items():
        table.add_row(str(batch), f"{schedule_us:.0f}", f"{encode_us:.0f}")
    console.print(table)

    found = {threads: {str(b): vars(each) for b, each in by.items()} for threads, by in times.items()}
    result = {
        "batch": found.pop(1, {}),
        "threads": {str(threads): by for threads, by in found.items()},
        "kinds": {name: {**vars(each), "schedule_us": cost} for name, (each, cost) in kinds.items()},
        "schedule_us": {str(batch): cost[0] for batch, cost in costs.items()},
        "encode_us": {str(batch): cost[1] for batch, cost in costs.items()},
    }
    print(json.dumps(result))


def show_where(console: Console, found: dict[tuple[int, int], Where]) -> None:
    """Prints a table and a line of JSON. `found` is by (threads, batch)."""
    table = Table("threads", "batch", *COLUMNS, title="where a decode step spends its time, ms; see service.py")
    for (threads, batch), each in found.items():
        table.add_row(str(threads), str(batch), *(f"{ms:.2f}" for ms in vars(each).values()))
    console.print(table)
    by_name = {f"{threads} threads, {batch}": vars(each) for (threads, batch), each in found.items()}
    print(json.dumps({"where": by_name}))


def run_as_worker() -> int:
    """Runs this program with the environment of a worker that has all cores. Returns its exit status."""
    if AS_WORKER in os.environ:
        return main()
    environment = thread_environment(len(os.sched_getaffinity(0))) | {AS_WORKER: "1"}
    return subprocess.call([sys.executable, "-m", "bench.overlap", *sys.argv[1:]], env=os.environ | environment)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.overlap", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="", help="checkpoint folder (default: 29M parameters, Qwen3's shape)")
    parser.add_argument("--batches", type=_numbers, default=(1, 8, 16, 32), help="batch sizes (default 1,8,16,32)")
    parser.add_argument("--scheduled", type=_numbers, default=SCHEDULED, help="batch sizes of the scheduling cost")
    parser.add_argument("--kinds", type=int, default=16, help="batch size for what requests ask for (default 16)")
    parser.add_argument("--threads", type=_numbers, default=(1, 2), help="threads of the forward (default 1,2)")
    parser.add_argument("--context", type=int, default=256, help="prompt tokens (default 256)")
    parser.add_argument("--steps", type=int, default=40, help="decode steps of a round (default 40)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each side, in alternation (default 5)")
    parser.add_argument("--where", action="store_true", help="only: where a step of a worker spends its time")
    asked = parser.parse_args(argv)

    plan = Plan(asked.context, asked.steps, asked.rounds)
    sys.setswitchinterval(1e-4)  # as a worker does
    torch.set_num_threads(1)

    runner = ModelRunner.load(asked.model or bench_model(), device="cpu", page_size=PAGE_SIZE)
    if asked.where:
        torch.set_num_threads(max(asked.threads))
        in_table = [(threads, batch) for threads in asked.threads for batch in asked.batches]
        lines = {at: where(runner, at[1], plan.context, plan.rounds, alone=at[0] == 1) for at in in_table}
        show_where(Console(width=160), lines)
        return 0

    times = {n: {batch: measure(runner, batch, plan, n) for batch in asked.batches} for n in asked.threads}
    kinds = {
        kind.name: (measure(runner, asked.kinds, plan, 1, kind), schedule_cost(asked.kinds, plan, kind)[0])
        for kind in KINDS
    }
    costs = {batch: schedule_cost(batch, plan) for batch in asked.scheduled}

    about = (
        f"{plan.context} tokens of context, {plan.steps} steps a round, medians of {plan.rounds} rounds of each side"
    )
    show(Console(), times, kinds, costs, about)
    return 0


if __name__ == "__main__":
    raise SystemExit(run_as_worker())
