"""Tokens a second of a unified worker that decodes, with a draft and without, in turns. All in this process.

With a forced acceptance, a proposal is right with that probability, whatever the draft thinks; the draft computes all
the same.
"""

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from torch import Tensor

from bench.overlap.decoding import ReplayedStream, executor_of, planner_of
from model.draft import begins_with
from model.eagle import EagleDraft
from model.inputs import ChainInput, ModelInput
from model.paged_kv import PagedKv
from model.runner import ModelRunner
from protocol.messages_gateway import Assign, SamplingParams, Tokens
from runtime.clock import Clock, MonotonicClock
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.executor import Executor
from scheduler.planning.speculation import Speculation
from scheduler.speculation.step_costs import measure_step_costs
from unified.worker import UnifiedWorker
from worker.policies import Policies

NUM_WARM: Final = 12  # tokens of each request before the time counts
PAGE_SIZE: Final = 16


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
    """What one side has done. `outputs` are those of each prompt, as far as they were drawn."""

    tokens_per_s: float
    mean_length: float  # of a run of tokens
    outputs: Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class ForcedDraft(EagleDraft):
    """A draft that computes as always, and then proposes what it is told: the right token with the probability
    `acceptance`, else a wrong one. It knows a request by its first page, and its text."""

    acceptance: float
    texts: Mapping[int, Sequence[int]]  # prompt and outputs, by the first page
    told: dict[int, int] = field(default_factory=dict)  # the proposals of the forward that runs, by wanted row

    def run_layer(self, index: int, inp: ModelInput, *rest: Any, attends: bool = True) -> Tensor:
        """See Draft.run_layer. Notes what `logits` is told, if anything is proposed."""
        if attends:
            self.told.clear()
            self.told.update(self._told(inp))
        hidden_TE: Tensor = super().run_layer(index, inp, *rest, attends=attends)
        return hidden_TE

    def chain(self, steps: ChainInput, tokens_B: Tensor, hidden_BE: Tensor, kv: PagedKv) -> Tensor:
        """See Draft.chain."""
        proposed_SB: Tensor = super().chain(steps, tokens_B, hidden_BE, kv)
        for step in range(len(proposed_SB)):
            for row, token in self._told(steps.step(step, tokens_B)).items():
                proposed_SB[step, row] = token % self.vocab_size
        return proposed_SB

    def _told(self, inp: ModelInput) -> dict[int, int]:
        told = {}
        behind_prompts = len(inp.extend_lens) - sum(inp.extend_lens)
        for row, token in enumerate(inp.logit_indices_L.tolist()):
            page, position = int(inp.page_table_BP[token + behind_prompts, 0]), int(inp.positions_T[token])
            text = self.texts.get(page)
            if text is not None and position + 2 < len(text):
                is_right = random.Random(position * 7919 + text[0]).random() < self.acceptance
                told[row] = text[position + 2] + (not is_right)
        return told

    def logits(self, hidden_LE: Tensor) -> Tensor:
        """See Draft.logits."""
        logits_LV: Tensor = super().logits(hidden_LE)
        for row, token in self.told.items():
            logits_LV[row, token % logits_LV.shape[1]] = 1e9
        return logits_LV


def measured(
    runner: ModelRunner,
    load: Load,
    num_steps: int | None,
    *,
    adaptive: bool = False,
    tree: tuple[int, int] = (1, 0),
    texts: Sequence[Sequence[int]] = (),
    acceptance: float | None = None,
) -> Run:
    """One run on one core. `num_steps` None: without a draft. `tree`: top-k and nodes of trees with so many levels.
    `acceptance` forces proposals; `texts` are then the outputs of every prompt."""
    used = replace(runner, draft=None, draft_checkpoint=None) if num_steps is None else runner
    forced: dict[int, Sequence[int]] = {}
    if acceptance is not None and isinstance(used.draft, EagleDraft):
        used = replace(used, draft=ForcedDraft(**vars(used.draft), acceptance=acceptance, texts=forced))

    clock = MonotonicClock()
    core = min(os.sched_getaffinity(0))
    stream = ReplayedStream({core}, 1, clock)
    shape = NO_DRAFT if num_steps is None else DraftShape(num_steps, *tree)
    executor = executor_of(used, len(load.prompts), load.longest + 1, stream, page_size=PAGE_SIZE, shape=shape)
    try:
        speculation = None
        if num_steps is not None:
            costs = measure_step_costs(executor, len(load.prompts), num_steps, clock) if adaptive else None
            speculation = Speculation(shape, begins_with(runner.draft), costs, clock)
        return served(executor, load, clock, stream.idle, speculation, forced=forced, texts=texts)
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
    forced: dict[int, Sequence[int]] | None = None,
    texts: Sequence[Sequence[int]] = (),
) -> Run:
    """One run of a worker on this executor. `idle` waits for the forward stream. `forced` gets the text of each
    request, out of `texts`, by its first page."""
    planner = planner_of(executor, speculation)
    policies = Policies(max_prefill_tokens=len(load.prompts) * load.longest)  # all prompts at once
    worker = UnifiedWorker(planner, "bench", clock, overlap=overlap, chunk_size=load.longest, policies=policies)
    return _run(worker, load, clock, idle, {} if forced is None else forced, texts)


def _run(
    worker: UnifiedWorker,
    load: Load,
    clock: Clock,
    idle: Callable[[], None],
    forced: dict[int, Sequence[int]],
    texts: Sequence[Sequence[int]],
) -> Run:
    outputs: list[list[int]] = [[] for _ in load.prompts]
    params = SamplingParams(max_tokens=load.num_tokens, temperature=0.0, ignore_eos=load.ignore_eos)
    for index, prompt in enumerate(load.prompts):
        worker.on_gateway(Assign(str(index), 0, prompt, params, 1, None))

    began, num_counted, num_runs = 0.0, 0, 0
    while all(len(each) < load.num_tokens for each in outputs):
        if not worker.step():
            idle()
        for req in worker.planner.decodes() if len(forced) < len(texts) else ():
            forced[req.held.pages[0]] = (*load.prompts[int(req.request_id)], *texts[int(req.request_id)])
        for message in worker.outbox.gateway:
            assert isinstance(message, Tokens), message
            for each in message.choices:
                outputs[int(each.request_id)] += each.token_ids
                num_counted += len(each.token_ids) if began else 0
                num_runs += bool(began)
        worker.outbox.gateway.clear()
        if not began and min(map(len, outputs)) >= NUM_WARM:
            began = clock.now()
    assert began and num_runs, "the requests are too short to be measured"
    return Run(num_counted / (clock.now() - began), num_counted / num_runs, outputs)
