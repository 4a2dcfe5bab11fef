"""Decode with a draft beside decode without one, on the same target.

    launches    Qwen3-8B's shape with an EAGLE draft of random weights, decoded by a worker with overlap: the parts of a
                launch, and the bubble between extend and the next propose
    costs       a verify launch of W tokens a row, the draft's extend and its step, each alone, beside a plain decode
    story       the bundled model and its draft: true acceptance, and tokens a second

A draft of random weights is hardly ever right, so speeds at a given acceptance are computed from measured times.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch

from bench.gpu.segments import Marked, Parts, marked_stream, parts_of
from bench.gpu.shape import captured, device_runner, maker_of_graphs, words_of, words_of_graphs
from bench.gpu.sheet import StepSheet
from bench.records import Value
from bench.step.costs import geometric, measure_costs, memory_for
from bench.step.decoding import LEAD, PAGE_SIZE, WARM_STEPS, Decoding, executor_of
from bench.step.serving import Load, Run, long_prompts, served
from model.draft import begins_with
from model.graphs import GraphedRunner
from model.runner import DraftSource, ModelRunner, Runner
from models.train.draft_text import HELD_OUT_SEED, prompts
from runtime.clock import MonotonicClock
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.executor import Executor
from scheduler.execution.streams import InlineStream, Stream
from scheduler.execution.streams_cuda import CudaStream
from scheduler.planning.speculation import Speculation

STORY: Final = Path(__file__).resolve().parents[2] / "models/story"
EAGLE: Final = DraftSource("eagle", STORY.with_name("story-eagle"))
NUM_STEPS: Final = 4
SHAPES: Final = {
    "none": NO_DRAFT,
    "chain of 4": DraftShape(NUM_STEPS),
    "tree of 3, top-k 2, 8 nodes": DraftShape(3, 2, 8),
}
ACCEPTANCES: Final = (0.6, 0.8)
LAUNCH_ABOUT: Final = (
    "Milliseconds. *launch*: between the ends of two launches of a worker with overlap. *propose*, *verify*, *extend*:"
    " medians of these segments, by events on the forward stream. *bubble*: from the end of extend to the beginning of"
    " the next propose. *idle*: no segment runs, in the whole launch, the bubble included. *length*: tokens of a row"
    " and launch, with a draft of random weights."
)
COST_ABOUT: Final = (
    "Milliseconds of each part alone, with graphs: a plain decode, a step of the draft, the verification of W tokens of"
    " each row, the draft's extend over 5. *speed at 0.6, 0.8*: tokens a second of a chain of 4 over those of plain"
    " decodes, if each proposal is accepted with this probability: computed from the times, without any bubble. As in"
    " a worker, graphs are captured for 1 and 5 tokens of a row; other numbers are padded to the next larger graph."
)
STORY_ABOUT: Final = (
    "The bundled model and its EAGLE draft on held-out prompts, greedy, a worker with overlap. *length*: tokens of a"
    " row and launch, as accepted. *beside none*: tokens/s over those without a draft."
)


@dataclass(frozen=True)
class Size:
    """What is measured."""

    batches: tuple[int, ...]  # the most valuable first
    context: int
    steps: int
    rounds: int  # of the costs
    story_tokens: int
    part_s: float  # the greatest time of a part


SIZES: Final = {
    "cuda": Size((1, 32, 8), 512, steps=20, rounds=3, story_tokens=160, part_s=15),
    "cpu": Size((1, 3), 20, steps=4, rounds=1, story_tokens=24, part_s=30),
}


def measure_drafts(sheet: StepSheet, device: str) -> None:
    """Runs the step."""
    size, runner = SIZES[device], device_runner(device, PAGE_SIZE, with_draft=True)
    sheet.note(f"{words_of(runner.config, device)}; context {size.context:,}; {words_of_graphs(device)}")

    none, chain, tree = SHAPES
    for batch in size.batches:
        for shape in (none, chain):
            sheet.part(
                f"batch {batch}, {shape}", size.part_s, partial(_launches, sheet, runner, size, batch, shape, True)
            )
    sheet.part("the bundled model", size.part_s, partial(_story, sheet, device, size))
    for batch in size.batches:
        sheet.part(f"costs, batch {batch}", size.part_s, partial(_costs, sheet, runner, size, batch))
    for batch in size.batches[:2]:
        more = ((chain, False), (tree, True))
        for shape, graphs in more:
            what = f"batch {batch}, {shape}, {'' if graphs else 'no '}graphs"
            sheet.part(what, size.part_s, partial(_launches, sheet, runner, size, batch, shape, graphs))


# ---- a worker ----


@dataclass
class Side:
    """An executor that launches with a draft of this shape or without one, warmed up."""

    executor: Executor
    stream: Marked
    speculation: Speculation


@contextmanager
def started(runner: ModelRunner, name: str, batch: int, max_context: int, *, with_graphs: bool) -> Iterator[Side]:
    """The side called `name` in SHAPES, for `batch` requests."""
    shape, device = SHAPES[name], runner.device
    used: Runner = runner if shape.num_steps else replace(runner, draft=None, draft_checkpoint=None)
    graphed = GraphedRunner(used, maker_of_graphs(device)) if with_graphs else None
    stream = marked_stream(device)
    schedule: Stream = CudaStream(torch.cuda.current_stream(device)) if device.type == "cuda" else InlineStream()
    room = max_context + 2 * max(1, shape.width)
    executor = executor_of(graphed or used, batch, room, stream, schedule=schedule, shape=shape)
    try:
        executor.warm_up(shape)
        if graphed is not None:
            captured(graphed)
        hidden_size = begins_with(used.draft)
        yield Side(executor, stream, Speculation(shape, hidden_size) if hidden_size else Speculation.without_draft())
    finally:
        executor.close()


# ---- launches of the large shape ----


def _launches(sheet: StepSheet, runner: ModelRunner, size: Size, batch: int, name: str, graphs: bool) -> None:
    shape = SHAPES[name]
    num_tokens = (WARM_STEPS + 2 * (LEAD + size.steps) + 8) * max(1, shape.num_computed)
    with started(runner, name, batch, size.context + num_tokens, with_graphs=graphs) as side:
        clock = MonotonicClock()
        decoding = Decoding.on(side.executor, side.stream, clock, overlap=True, speculation=side.speculation)
        decoding.start(batch, size.context, num_tokens)
        launch_s = decoding.run(size.steps)
        side.stream.is_marking = True
        decoding.run(size.steps)
        side.stream.is_marking = False
        parts = parts_of(side.stream.spans()) if shape.num_steps else None

    length = mean_length(side.speculation)
    with_graphs = "no" if not graphs else "yes" if runner.device.type == "cuda" else "stand-in"
    cells: dict[str, Value] = {"batch": batch, "draft": name, "graphs": with_graphs, "launch": launch_s * 1e3}
    cells |= {part: getattr(parts, part, None) for part in Parts.__dataclass_fields__}
    sheet.row("A launch with a draft", cells | {"length": length, "tokens/s": batch * length / launch_s}, LAUNCH_ABOUT)


def mean_length(speculation: Speculation) -> float:
    """Tokens of a row and launch: the proposals that were kept, and one more. 1 if nothing was proposed."""
    if not speculation.proposed or not speculation.proposed[0]:
        return 1.0
    return 1 + sum(speculation.accepted) / speculation.proposed[0]


# ---- costs ----


def _costs(sheet: StepSheet, runner: ModelRunner, size: Size, batch: int) -> None:
    kv = memory_for(runner, batch, size.context, NUM_STEPS)
    graphed = GraphedRunner(runner, maker_of_graphs(runner.device))
    graphed.capture(kv, batch, kv.layout.num_pages(size.context + NUM_STEPS + 1), NUM_STEPS + 1)
    costs = measure_costs(captured(graphed), batch, size.context, NUM_STEPS, size.rounds, kv=kv, in_a_row=5)

    cells: dict[str, Value] = {"batch": batch, "plain": costs.plain_us / 1e3, "draft step": costs.draft_us / 1e3}
    cells |= {f"verify {num + 2}": us / 1e3 for num, us in enumerate(costs.verify_us)}
    cells |= {"extend 5": costs.extend_us[-1] / 1e3, "verify 5 / plain": costs.verify_us[-1] / costs.plain_us}
    cells |= {
        f"speed at {acceptance:g}": costs.speed_up(geometric(acceptance, NUM_STEPS), NUM_STEPS)
        for acceptance in ACCEPTANCES
    }
    sheet.row("What a launch with a draft is made of", cells, COST_ABOUT)


# ---- the bundled model ----


def _story(sheet: StepSheet, device: str, size: Size) -> None:
    runner = ModelRunner.load(STORY, device=device, draft=EAGLE)
    load = held_out(runner, max(size.batches), size.story_tokens)
    for batch in sorted(size.batches):
        few = replace(load, prompts=load.prompts[:batch])
        plain: Run | None = None
        for name in SHAPES:
            run = _served(runner, name, few)
            plain = plain or run
            cells: dict[str, Value] = {"batch": batch, "draft": name, "length": run.mean_length}
            cells |= {"tokens/s": run.tokens_per_s, "beside none": run.tokens_per_s / plain.tokens_per_s}
            sheet.row("The bundled model", cells, STORY_ABOUT)


def held_out(runner: ModelRunner, count: int, num_tokens: int) -> Load:
    """Prompts whose answers are so long: a draft has learnt nothing of what lies behind an answer's end."""
    asked = prompts(HELD_OUT_SEED, 8 * count)
    answers = _served(runner, "none", Load(asked, num_tokens, ignore_eos=True)).outputs
    long = long_prompts(asked, answers, runner.config.eos_token_ids, count)
    return Load(long, num_tokens, ignore_eos=True)


def _served(runner: ModelRunner, name: str, load: Load) -> Run:
    with started(runner, name, len(load.prompts), load.longest, with_graphs=True) as side:
        return served(side.executor, load, MonotonicClock(), side.stream.idle, side.speculation, overlap=True)
