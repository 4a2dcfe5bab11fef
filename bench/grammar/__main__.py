"""`python -m bench.grammar`: what answers in a grammar cost, a token and at their beginning.

A unified worker decodes 16 requests, of which none, some or all follow a JSON schema. All rows of a launch are sampled
together, so the time of a step is the ITL of every row, also of those without a grammar. Then grammars are compiled, by
size: at the gateway, which refuses what cannot be followed, and at the worker. A thread beside measures how long either
keeps the interpreter to itself. Last, a deployment serves a stream while hostile grammars are asked for. The last line
of output is one JSON object.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from bench.grammar import neighbour
from bench.overlap.decoding import PAGE_SIZE, WARM_STEPS, Decoding, Plan, ReplayedStream, executor_of
from bench.turns import in_turn
from gateway.grammar_texts import text_of
from gateway.grammar_trials import Trials
from gateway.grammars import Asked
from loadtest.bench_model import bench_model
from model.runner import ModelRunner, Runner
from models.train.train import STORY_FOLDER
from protocol.errors import BadRequest
from protocol.grammar import grammar_name
from protocol.messages_gateway import Assign, SamplingParams
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


def assign(index: int, num_tokens: int, context: int, grammar: str) -> Assign:
    """A request that draws all of its tokens, at temperature 1. `grammar`: the text; "": none."""
    sampling = SamplingParams(
        max_tokens=num_tokens,
        temperature=1.0,
        seed=index,
        eos_token_ids=(0,),
        ignore_eos=True,
        grammar=grammar_name(grammar),
    )
    prompt = tuple((index + place) % 1000 + 1 for place in range(context))
    return Assign(f"r{index}", 0, prompt, sampling, num_choices=1, prefill=None, grammar=grammar)


def step_times(
    runner: Runner, load: Callable[[], Vocabulary], plan: Plan, constrained: Sequence[int], *, overlap: bool
) -> dict[int, float]:
    """Milliseconds of a decode step by the number of rows with a grammar, medians of rounds in turn."""
    clock, grammar = MonotonicClock(), text_of(Asked("json", "json", ENDLESS))
    sides = {num: _side(runner, load, plan, clock, overlap=overlap) for num in constrained}
    times: dict[int, list[float]] = {num: [] for num in constrained}
    try:
        for num, side in sides.items():
            for index in range(BATCH):
                side.worker.on_gateway(assign(index, plan.num_tokens, plan.context, grammar if index < num else ""))
            side.until(partial(_is_full, side))
            side.run(WARM_STEPS)
        for turn in range(plan.rounds):
            for num in in_turn(constrained, turn):
                times[num].append(sides[num].run(plan.steps))
                assert _is_full(sides[num]), "no request has ended"
    finally:
        for side in sides.values():
            side.executor.close()
    return {num: round(median(each) * 1e3, 3) for num, each in times.items()}


def _is_full(side: Decoding) -> bool:
    return side.worker.stats().running == BATCH


def _side(runner: Runner, load: Callable[[], Vocabulary], plan: Plan, clock: Clock, *, overlap: bool) -> Decoding:
    """A worker whose grammars are compiled and masked as in worker/boot.py."""
    stream = ReplayedStream(os.sched_getaffinity(0), 1, clock)
    compiling, masking, beside = (ThreadPoolExecutor(1, name) for name in ("grammars", "masks", "late-masks"))
    grammars = AnswerGrammars(load, compiling, masking, beside, stream.wake)
    executor = executor_of(runner, BATCH, plan.max_context, stream, grammars=grammars)
    return Decoding.on(executor, stream, clock, overlap=overlap)


def compile_times(vocabulary: Vocabulary, rounds: int) -> list[dict[str, float]]:
    """Milliseconds by the size of a schema, medians; and the longest time that another thread had to wait."""
    found, trials = [], Trials(vocabulary, ThreadWorkClock())
    for num in NUM_PROPERTIES:
        asked = Asked("json", "json", _object_of(num))
        checking = [_watched(partial(_tried, trials, asked)) for _ in range(rounds)]
        text = _tried(trials, asked)
        compiling = [_watched(partial(compile_grammar, text, vocabulary)) for _ in range(rounds)]
        found.append(
            {
                "properties": num,
                "characters": len(json.dumps(asked.source)),
                "gateway ms": round(median(took for took, _ in checking) * 1e3, 2),
                "worker ms": round(median(took for took, _ in compiling) * 1e3, 2),
                "longest wait ms": round(max(waited for _, waited in (*checking, *compiling)) * 1e3, 2),
            }
        )
    return found


def _object_of(num: int) -> dict[str, Any]:
    names = [f"field{place}" for place in range(num)]
    value = {"type": "string", "pattern": "^[a-z]{2,50}$"}
    properties = dict.fromkeys(names, value)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _tried(trials: Trials, asked: Asked) -> str:
    """The grammar's text, as the gateway's process for trials makes it and tries it."""
    found = trials.of(asked)
    if isinstance(found, BadRequest):
        raise found
    return found


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


def show(
    console: Console,
    steps: dict[str, dict[int, float]],
    compiled: list[dict[str, float]],
    gaps: list[dict[str, Any]],
) -> None:
    """Prints the tables, and a line of JSON."""
    table = Table("rows with a grammar", *steps, title=f"a decode step of {BATCH} rows, ms; beside none")
    for num in next(iter(steps.values())):
        cells = (f"{each[num]:.2f} ({each[num] / each[0]:.2f})" for each in steps.values())
        table.add_row(str(num), *cells)
    console.print(table)

    table = Table(*compiled[0], title="a schema is compiled")
    for row in compiled:
        table.add_row(*(f"{value:g}" for value in row.values()))
    console.print(table)

    if gaps:
        table = Table(*gaps[0], title="a stream beside hostile requests, the worst of the rounds")
        for each in gaps:
            table.add_row(*map(str, each.values()))
        console.print(table)
    print(json.dumps({"step_ms": steps, "compile": compiled, "neighbour": gaps}))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.grammar", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="", help="checkpoint folder (default: 29M parameters, Qwen3's shape)")
    parser.add_argument("--context", type=int, default=128, help="prompt tokens (default 128)")
    parser.add_argument("--steps", type=int, default=40, help="decode steps of a round (default 40)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each number of rows, in turn (default 5)")
    parser.add_argument("--beside", type=int, default=3, help="rounds of hostile requests beside a stream (default 3)")
    asked = parser.parse_args(argv)

    sys.setswitchinterval(1e-4)  # as a worker does
    torch.set_num_threads(1)
    runner = ModelRunner.load(asked.model or bench_model(), device="cpu", page_size=PAGE_SIZE)
    # The default model's made-up words have no bytes. It has as many tokens as the bundled one.
    load = partial(load_vocabulary, Path(asked.model or STORY_FOLDER), runner.config.vocab_size)

    plan = Plan(asked.context, asked.steps, asked.rounds)
    steps = {
        name: step_times(runner, load, plan, ROWS, overlap=overlap)
        for name, overlap in (("overlap", True), ("serial", False))
    }
    gaps = neighbour.measure(asked.beside) if asked.beside else []
    show(Console(width=120), steps, compile_times(load(), asked.rounds), gaps)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
