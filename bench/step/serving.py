"""Tokens a second of a unified worker that decodes, with a draft and without, in turns. All in this process."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bench.step.decoding import ReplayedStream, executor_of, planner_of
from model.draft import begins_with
from model.runner import ModelRunner
from protocol.messages_gateway import Assign, SamplingParams, Tokens
from runtime.clock import Clock, MonotonicClock
from scheduler.draft_shape import DraftShape
from scheduler.execution.executor import Executor
from scheduler.planning.speculation import Speculation
from scheduler.speculation.step_costs import measure_step_costs
from unified.worker import UnifiedWorker
from worker.policies import Policies

NUM_WARM: Final = 12  # tokens of each request before the time counts


@dataclass(frozen=True)
class Load:
    """`prompts` decode `num_tokens` each, greedily."""

    prompts: Sequence[tuple[int, ...]]
    num_tokens: int
    ignore_eos: bool = False

    @property
    def longest(self) -> int:
        """Tokens of the longest context."""
        return max(map(len, self.prompts)) + self.num_tokens


@dataclass(frozen=True)
class Run:
    """The figures of one side. `outputs`: the tokens that each prompt has drawn."""

    tokens_per_s: float
    mean_length: float  # of a run of tokens
    outputs: Sequence[Sequence[int]]


def measured(runner: ModelRunner, load: Load, shape: DraftShape, *, adaptive: bool = False) -> Run:
    """One run on one core, with drafts of this shape. `adaptive`: it is the greatest, and the worker chooses."""
    used = runner if shape.num_steps else replace(runner, draft=None, draft_checkpoint=None)
    clock = MonotonicClock()
    stream = ReplayedStream({min(os.sched_getaffinity(0))}, 1, clock)
    executor = executor_of(used, len(load.prompts), load.longest + 1, stream, shape=shape)
    try:
        speculation = None
        if shape.num_steps:
            costs = measure_step_costs(executor, len(load.prompts), shape.num_steps, clock) if adaptive else None
            speculation = Speculation(shape, begins_with(runner.draft), costs, clock)
        return served(executor, load, clock, stream.idle, speculation)
    finally:
        executor.close()


def served(
    executor: Executor,
    load: Load,
    clock: Clock,
    idle: Callable[[], None],
    speculation: Speculation | None,
    *,
    overlap: bool = False,
) -> Run:
    """One run of a worker on this executor, until a request has all its tokens. `idle` waits for the forward stream."""
    policies = Policies(
        overlap, load.longest, max_prefill_tokens=len(load.prompts) * load.longest
    )  # all prompts at once
    planner = planner_of(executor, speculation)
    worker = UnifiedWorker(planner, "bench", clock, policies)
    outputs: list[list[int]] = [[] for _ in load.prompts]
    params = SamplingParams(max_tokens=load.num_tokens, temperature=0.0, ignore_eos=load.ignore_eos)
    for index, prompt in enumerate(load.prompts):
        worker.on_gateway(Assign(str(index), 0, prompt, params, 1, None))

    began, num_counted, num_runs = 0.0, 0, 0
    while all(len(output) < load.num_tokens for output in outputs):
        if not worker.turn():
            idle()
        for message in worker.outbox.gateway:
            assert isinstance(message, Tokens), message
            for choice in message.choices:
                outputs[int(choice.request_id)] += choice.token_ids
                num_counted += len(choice.token_ids) if began else 0
                num_runs += bool(began)
        worker.outbox.gateway.clear()
        if not began and min(map(len, outputs)) >= NUM_WARM:
            began = clock.now()
    assert began and num_runs, "the requests are too short to be measured"
    return Run(num_counted / (clock.now() - began), num_counted / num_runs, outputs)


def long_prompts(
    asked: Sequence[tuple[int, ...]], answers: Sequence[Sequence[int]], ends: Sequence[int], count: int
) -> list[tuple[int, ...]]:
    """The prompts whose answers have no end: a draft has learnt nothing of what lies behind one. RuntimeError if fewer
    than `count` do."""
    long = [prompt for prompt, answer in zip(asked, answers, strict=True) if not {*ends} & {*answer}]
    if len(long) < count:
        raise RuntimeError(f"{len(long)} of {len(asked)} answers are long enough, expected {count}")
    return long
