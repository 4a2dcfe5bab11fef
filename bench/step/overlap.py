"""How much host work overlap hides in a decode step, and what a step costs the host.

    forward    the launches of a step again and again, alone
    overlap    a unified worker that decodes, two launches in flight
    serial     the same worker with one launch in flight
    host       its part of a step, with a model that computes nothing; encoding the step's messages apart

The forward has one core and the host another; then the forward has two threads and nothing is pinned. kinds.py lists
the requests.
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from bench.sheet import Sheet
from bench.step.decoding import PAGE_SIZE, AtOnce, Decoding, Plan, ReplayedStream, Times, executor_of, pin, timed
from bench.step.flags import add_plan, count, model_of, plan_of
from bench.step.kinds import GREEDY, KINDS, Kind
from model.fake import FakeRunner
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.runner import ModelRunner, Runner
from runtime.clock import MonotonicClock

RATIO = 1.02  # of a step with overlap to its forward, at most
SCHEDULED = (1, 8, 16, 32, 64, 128, 256)
ABOUT = (
    "Milliseconds. *forward*: the launches of a step alone; *overlap*, *serial*: a unified worker that decodes; *host*:"
    " its thread's part of a serial step."
)
HOST_ABOUT = "Microseconds of a step, with a model that computes nothing."


def flags(parser: argparse.ArgumentParser) -> None:
    """What may be asked for."""
    add_plan(parser, context=256, steps=40, rounds=5)
    parser.add_argument("--batches", type=count, nargs="*", default=(1, 8, 16, 32), help="(default 1 8 16 32)")
    parser.add_argument("--scheduled", type=count, nargs="*", default=SCHEDULED, help="batches of the host's part")
    parser.add_argument("--kinds", type=count, default=16, help="batch for what requests ask for (default 16)")
    parser.add_argument("--threads", type=count, nargs="+", default=(1, 2), help="of the forward (default 1 2)")


def measure(asked: argparse.Namespace, sheet: Sheet) -> None:
    """Writes three tables."""
    plan, runner = plan_of(asked), ModelRunner.load(model_of(asked), device="cpu", page_size=PAGE_SIZE)
    for threads in asked.threads:
        for batch in asked.batches:
            times = step_times(runner, batch, plan, threads)
            assert times.serial is not None, "a worker without overlap decodes, too"
            ratio = times.overlap / times.forward
            cells = {"threads": threads, "batch": batch, **vars(times), "overlap / forward": ratio}
            sheet.row("A decode step", {**cells, "overlap / serial": times.overlap / times.serial}, ABOUT)
            sheet.goal(f"{threads} threads, batch {batch}: overlap / forward", ratio, "at most", RATIO)

    for kind in KINDS:
        times = step_times(runner, asked.kinds, plan, 1, kind)
        host_us, _ = host_times(asked.kinds, plan, kind)
        sheet.row(f"A step of {asked.kinds} requests of a kind", {"kind": kind.name, **vars(times), "host us": host_us})
    for batch in asked.scheduled:
        host_us, encode_us = host_times(batch, plan)
        sheet.row("The host's part", {"batch": batch, "schedule": host_us, "encode": encode_us}, HOST_ABOUT)


def step_times(runner: Runner, batch: int, plan: Plan, num_threads: int, kind: Kind = GREEDY) -> Times:
    """With one thread, the forward has one core and the host another, if there are two."""
    cores = sorted(os.sched_getaffinity(0))
    is_pinned = num_threads == 1 and len(cores) > 1
    forward_cores = {cores[0]} if is_pinned else set(cores)
    if is_pinned:
        pin({cores[1]})

    clock = MonotonicClock()
    sides: dict[tuple[str, bool], tuple[Decoding, ReplayedStream]] = {}
    for overlap in (True, False):
        stream = ReplayedStream(forward_cores, num_threads, clock)
        executor = executor_of(runner, kind.num_requests(batch), plan.max_context, stream)
        sides["", overlap] = Decoding.on(executor, stream, clock, overlap=overlap), stream

    try:
        for side, _ in sides.values():
            side.start(batch, plan.context, plan.num_tokens, kind)
        return timed(sides, plan)[""]
    finally:
        for side, _ in sides.values():
            side.executor.close()
        pin(set(cores))


@dataclass(frozen=True)
class NoModel(FakeRunner):
    """Computes nothing: every token gets the same score."""

    def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """Logits (L, V), all zero."""
        return torch.zeros(1, 1).expand(inp.logit_indices_L.shape[0], self.vocab_size)


def host_times(batch: int, plan: Plan, kind: Kind = GREEDY) -> tuple[float, float]:
    """Microseconds of the host in one step, and to encode its messages: medians of rounds. All runs on this thread;
    what the launches take does not count."""
    stream = AtOnce(perf_counter)
    executor = executor_of(NoModel(), kind.num_requests(batch), plan.max_context, stream)
    decoding = Decoding.on(executor, stream, stream, overlap=True)
    decoding.start(batch, plan.context, plan.num_tokens, kind)
    host_times = []
    for _ in range(plan.rounds):
        decoding.run(plan.steps)
        host_times.append((decoding.host_s - decoding.encode_s, decoding.encode_s))

    guests = 0 if decoding.guests is None else len(decoding.guests)
    assert decoding.num_running == batch + guests, "no request has ended: every step had the whole batch"
    host_us, encode_us = (median(seconds) / plan.steps * 1e6 for seconds in zip(*host_times, strict=True))
    return host_us, encode_us
