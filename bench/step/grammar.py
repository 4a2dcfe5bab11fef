"""What answers in a grammar cost, a token and at their beginning.

A unified worker decodes 16 requests, of which none, some or all follow a JSON schema. All rows of a launch are sampled
together, so the time of a step is the ITL of every row, also of those without a grammar. Then grammars are compiled, by
size: at the gateway, which refuses what cannot be followed, and at the worker. A thread beside measures how long either
keeps the interpreter to itself.
"""

import argparse
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.rounds import in_rounds
from bench.sheet import Sheet
from bench.step.decoding import PAGE_SIZE, Decoding, Plan, ReplayedStream, executor_of
from bench.step.flags import add_plan, model_of, plan_of
from bench.step.kinds import Kind
from gateway.generation.grammars.texts import text_of
from gateway.generation.grammars.trials import Trials
from gateway.words.request import Grammar
from model.runner import ModelRunner, Runner
from models.train.train import STORY_FOLDER
from protocol.errors import BadRequest
from runtime.clock import Clock, MonotonicClock, ThreadWorkClock
from runtime.grammars import compile_grammar
from runtime.vocabulary import Vocabulary, load_vocabulary
from scheduler.execution.grammars import AnswerGrammars

BATCH: Final = 16
ROWS: Final = (0, 1, 8, 16)  # of a batch, with a grammar
ENDLESS: Final = {  # an answer that follows it is longer than any that is measured
    "type": "array",
    "minItems": 1_000_000,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"enum": ["red", "green"]}},
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}
NUM_PROPERTIES: Final = (3, 30, 300, 1000, 2500)
WATCH_S: Final = 0.001  # between two looks at the clock
RATIO: Final = 1.1  # of a step with overlap to one without grammars, at most
COMPILE_ABOUT: Final = (
    "Milliseconds. *longest wait*: of a thread beside either, which looks at the clock every millisecond."
)


def flags(parser: argparse.ArgumentParser) -> None:
    """What may be asked for."""
    add_plan(parser, context=128, steps=40, rounds=5)


def measure(asked: argparse.Namespace, sheet: Sheet) -> None:
    """Writes two tables."""
    runner = ModelRunner.load(model_of(asked), device="cpu", page_size=PAGE_SIZE)
    # The default model's made-up words have no bytes. It has as many tokens as the bundled one.
    load = partial(load_vocabulary, Path(asked.model or STORY_FOLDER), runner.config.vocab_size)
    for name in ("overlap", "serial"):
        times = step_times(runner, load, plan_of(asked), overlap=name == "overlap")
        for rows, ms in times.items():
            ratio = ms / times[0]
            sheet.row(
                f"A step of {BATCH} rows", {"worker": name, "with a grammar": rows, "ms": ms, "beside none": ratio}
            )
            if rows and name == "overlap":
                sheet.goal(f"{rows} rows with a grammar / none", ratio, "at most", RATIO)

    vocabulary, trials = load(), Trials(load(), ThreadWorkClock())
    for num in NUM_PROPERTIES:
        asked_for = Grammar("json", _object_of(num))
        checking = [_watched(partial(_tried, trials, asked_for)) for _ in range(asked.rounds)]
        text = _tried(trials, asked_for)
        compiling = [_watched(partial(compile_grammar, text, vocabulary)) for _ in range(asked.rounds)]
        longest = max(waited for _, waited in (*checking, *compiling))
        medians = {"gateway": median(took for took, _ in checking), "worker": median(took for took, _ in compiling)}
        times_ms = {name: seconds * 1e3 for name, seconds in (medians | {"longest wait": longest}).items()}
        cells = {"properties": num, "characters": len(json.dumps(asked_for.source))}
        sheet.row("A schema is compiled", {**cells, **times_ms}, COMPILE_ABOUT)


def step_times(runner: Runner, load: Callable[[], Vocabulary], plan: Plan, *, overlap: bool) -> dict[int, float]:
    """Milliseconds of a decode step by the number of rows with a grammar, medians of rounds in turn."""
    clock, sampled = MonotonicClock(), Kind("sampled", temperature=1.0)
    follows = Kind("grammar", temperature=1.0, grammar=text_of(Grammar("json", ENDLESS)))
    sides = {num: _side(runner, load, plan, clock, overlap=overlap) for num in ROWS}
    try:
        for num, side in sides.items():
            side.start(BATCH, plan.context, plan.num_tokens, follows, sampled, num)
        by_side = in_rounds({num: partial(side.run, plan.steps) for num, side in sides.items()}, plan.rounds)
        assert all(side.num_running == BATCH for side in sides.values()), "no request has ended"
    finally:
        for side in sides.values():
            side.executor.close()
    return {num: median(seconds) * 1e3 for num, seconds in by_side.items()}


def _side(runner: Runner, load: Callable[[], Vocabulary], plan: Plan, clock: Clock, *, overlap: bool) -> Decoding:
    """A worker whose grammars are compiled and masked as in worker/boot.py."""
    stream = ReplayedStream(os.sched_getaffinity(0), 1, clock)
    compiling, masking, beside = (ThreadPoolExecutor(1, name) for name in ("grammars", "masks", "late-masks"))
    grammars = AnswerGrammars(load, compiling, masking, beside, stream.wake)
    executor = executor_of(runner, BATCH, plan.max_context, stream, grammars=grammars)
    return Decoding.on(executor, stream, clock, overlap=overlap)


def _object_of(num: int) -> dict[str, Any]:
    names = [f"field{index}" for index in range(num)]
    value = {"type": "string", "pattern": "^[a-z]{2,50}$"}
    properties = dict.fromkeys(names, value)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _tried(trials: Trials, asked: Grammar) -> str:
    """The grammar's text, as the gateway's process for trials makes it and tries it."""
    trial = trials.of(asked)
    if isinstance(trial, BadRequest):
        raise trial
    return trial


def _watched(work: Callable[[], object]) -> tuple[float, float]:
    """(seconds of `work`, the longest time that a thread which looks at the clock every millisecond was kept)."""
    clock, is_over, waits = MonotonicClock(), threading.Event(), [0.0]

    def look() -> None:
        last = clock.now()
        while not is_over.wait(WATCH_S):
            waits.append(clock.now() - last - WATCH_S)
            last = clock.now()

    watch = threading.Thread(target=look)
    watch.start()
    start = clock.now()
    try:
        work()
        took = clock.now() - start
    finally:
        is_over.set()
        watch.join()
    return took, max(waits)
