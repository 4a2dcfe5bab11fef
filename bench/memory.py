"""`python -m bench.memory`: what the prefix cache saves where many requests have one system prompt.

A pair serves them, with the cache and without it: prompt tokens that prefill computes, KV bytes that come to decode,
and TTFT. (`make bench ARGS='--scenario trace'` has a trace, beside vLLM.) The last line of output is one JSON object.
"""

import argparse
import random
from collections.abc import Sequence
from functools import partial
from statistics import median

from bench.programs import run_program
from bench.rounds import ratios, spread, turns
from bench.sheet import Printed, Sheet
from bench.side import Side, baton_sides, run_jobs
from loadtest.bench_flags import at_least
from loadtest.bench_model import CONFIG, bench_model
from loadtest.deployment import PAIR
from loadtest.figures.distribution import percentile
from runtime.clock import MonotonicClock

SYSTEM_TOKENS, SUFFIX_TOKENS = 512, 32
NUM_REQUESTS, QUICK_REQUESTS, AT_A_TIME = 64, 8, 16
JUDGED = ("tokens computed", "bytes moved")
SHARE = 0.1  # of what is computed and moved without the cache, at most


def prompt_of(rng: random.Random, num_tokens: int) -> tuple[int, ...]:
    """Random tokens of the model's vocabulary."""
    return tuple(rng.choices(range(3, CONFIG["vocab_size"]), k=num_tokens))


async def measure(rounds: int, is_quick: bool, sheet: Sheet) -> None:
    """Writes a table. Each round has a system prompt of its own."""
    num_requests = QUICK_REQUESTS if is_quick else NUM_REQUESTS
    model = bench_model(num_hidden_layers=1) if is_quick else bench_model()
    serve = (*PAIR, "--model", str(model))
    async with baton_sides({"cache": serve, "no cache": (*serve, "--disable-radix-cache")}, MonotonicClock()) as sides:
        by_side: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
        for side, number in turns(sides, rounds, warm_up=1):
            row = await one_round(side, random.Random(f"system prompt {number}"), num_requests)
            by_side[side.name] += [row] if number >= 0 else []

    about = f"{num_requests} requests, {AT_A_TIME} at a time: {SYSTEM_TOKENS} common tokens, then 1 to {SUFFIX_TOKENS}."
    values = {name: {figure: [row[figure] for row in rows] for figure in rows[0]} for name, rows in by_side.items()}
    for name, figures in values.items():
        shown = {figure: spread(rounds) for figure, rounds in figures.items()}
        sheet.row("One system prompt", {"side": name, **shown}, about)
    less = {figure: median(ratios(*(side[figure] for side in values.values()))) for figure in values["cache"]}
    sheet.row("One system prompt", {"side": "cache / no cache", **less})
    for figure in JUDGED:
        sheet.goal(f"{figure}, cache / no cache", less[figure], "at most", SHARE)


async def one_round(side: Side, rng: random.Random, num_requests: int) -> dict[str, float]:
    """The requests come when a first one has ended, which is not counted."""
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


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 2 for a server that does not start; 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=at_least(1), default=3, help="rounds of each side (default 3)")
    parser.add_argument("--quick", action="store_true", help="one small round; shows that it works, no more")
    asked, sheet = parser.parse_args(argv), Printed("memory")
    return run_program("bench.memory", measure(1 if asked.quick else asked.rounds, asked.quick, sheet), sheet)


if __name__ == "__main__":
    raise SystemExit(main())
