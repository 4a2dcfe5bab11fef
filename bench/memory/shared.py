"""Prompts that begin alike, with the prefix cache and without it: one system prompt of many requests.

A pair serves them: prompt tokens that prefill computes, KV bytes that come to decode, and TTFT.
"""

import random
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median

from bench.memory.part import Setting
from bench.rounds import ratios, spread, turns
from bench.side import Side, baton_sides, run_jobs
from loadtest.bench_model import CONFIG
from loadtest.figures.distribution import percentile
from loadtest.scenarios import PAIR

SYSTEM_TOKENS, SUFFIX_TOKENS = 512, 32
NUM_REQUESTS, AT_A_TIME = 64, 16
OFF = "--disable-radix-cache"
JUDGED = ("tokens computed", "bytes moved")
SHARE = 0.1  # of what is computed and moved without the cache, at most


def serve(setting: Setting) -> Mapping[str, Sequence[str]]:
    """The two sides."""
    fixed = (*PAIR, "--model", str(setting.model))
    return {"cache": fixed, "no cache": (*fixed, OFF)}


def prompt_of(rng: random.Random, num_tokens: int) -> tuple[int, ...]:
    """Random tokens of the model's vocabulary."""
    return tuple(rng.choices(range(3, CONFIG["vocab_size"]), k=num_tokens))


async def measure(setting: Setting) -> None:
    """64 requests after a first one has ended. Writes a table."""
    num_requests = 8 if setting.quick else NUM_REQUESTS
    found: dict[str, list[dict[str, float]]] = {name: [] for name in serve(setting)}
    async with baton_sides(serve(setting), setting.clock) as sides:
        for side, number in turns(sides, setting.rounds, warm_up=1):
            row = await one_round(side, random.Random(f"system prompt {number}"), num_requests)
            found[side.name] += [row] if number >= 0 else []

    about = f"{num_requests} requests, {AT_A_TIME} at a time: {SYSTEM_TOKENS} common tokens, then 1 to {SUFFIX_TOKENS}."
    values = {name: {each: [row[each] for row in rows] for each in rows[0]} for name, rows in found.items()}
    for name, figures in values.items():
        shown = {figure: spread(rounds) for figure, rounds in figures.items()}
        setting.sheet.row("One system prompt", {"side": name, **shown}, about)
    less = {figure: median(ratios(*(side[figure] for side in values.values()))) for figure in values["cache"]}
    setting.sheet.row("One system prompt", {"side": "cache / no cache", **less})
    for figure in JUDGED:
        setting.sheet.goal(f"{figure}, cache / no cache", less[figure], "at most", SHARE)


async def one_round(side: Side, rng: random.Random, num_requests: int) -> dict[str, float]:
    """A system prompt of its own. The first request is not counted."""
    system = prompt_of(rng, SYSTEM_TOKENS)
    prompts = [(*system, *prompt_of(rng, rng.randint(1, SUFFIX_TOKENS))) for _ in range(num_requests)]
    await side.complete((*system, *prompt_of(rng, SUFFIX_TOKENS)), 8)

    before = await side.bytes_moved()
    answers = await run_jobs([partial(side.complete, prompt, 8) for prompt in prompts], AT_A_TIME)
    moved = await side.bytes_moved() - before
    ttft_ms = [answer.arrivals[0] * 1e3 for answer in answers]
    return {
        "tokens computed": sum(answer.num_computed for answer in answers),
        "bytes moved": moved,
        "TTFT p50 ms": percentile(ttft_ms, 0.5),
        "TTFT max ms": max(ttft_ms),
    }
