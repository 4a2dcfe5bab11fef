"""What growth and the cache cost when no two prompts begin alike.

served    tokens/s of a unified worker with the cache and without it, in many short turns
host      the host's part of a decode step when contexts grow in pages of one token, and when they never grow
"""

import random
from functools import partial
from statistics import mean, median
from typing import Any, Final

import torch

from bench.memory.figures import Goal, interval, ratios, show_goals, show_rows, spread
from bench.memory.part import Setting
from bench.memory.shared import OFF, prompt_of
from bench.memory.side import Side, baton_sides, run_jobs
from bench.overlap.__main__ import host_times, measure
from bench.overlap.decoding import PAGE_SIZE, Plan
from bench.turns import in_turn
from loadtest.scenarios import UNIFIED
from model.runner import ModelRunner
from scheduler.planning.growth import GROWTH_TOKENS

TURNS_A_ROUND: Final = 8
AT_A_TIME = 16
PROMPT_TOKENS, OUTPUTS = 256, 64
POOL_TOKENS = 16384  # the cache is soon full, so each prompt is looked up and kept, and others leave for it

BATCHES = (16, 64)
GROWS, NEVER_GROWS = 1, 1024  # page sizes
CONTEXT = 256


async def measure_served(setting: Setting) -> dict[str, Any]:
    """Prints the table. Returns the same as JSON."""
    fixed = (*UNIFIED, "--model", str(setting.model), "--max-total-tokens", str(POOL_TOKENS))
    speeds: dict[str, list[float]] = {}
    num_turns = 1 if setting.quick else TURNS_A_ROUND * setting.rounds
    async with baton_sides({"cache": fixed, "no cache": (*fixed, OFF)}, setting.clock) as sides:
        for number in range(-2, num_turns):  # the first two warm up, and fill the cache
            for side in in_turn(sides, number):
                speed = await one_turn(side, number)
                if number >= 0:
                    speeds.setdefault(side.name, []).append(speed)

    per_turn = ratios(speeds["cache"], speeds["no cache"])
    low, high = interval(per_turn)
    rows = [{"side": name, "tokens/s": spread(of_side)} for name, of_side in speeds.items()]
    about = f"{num_turns} turns of {2 * AT_A_TIME} requests, {PROMPT_TOKENS} tokens in, {OUTPUTS} out, nothing shared"
    show_rows(setting.console, about, rows, setting.markdown)
    setting.console.print(f"cache / no cache: {median(per_turn):.3f}, 90% interval {low:.3f}-{high:.3f}")
    goals = [Goal("tokens/s, cache / no cache", median(per_turn), "at least", 0.98)]
    return {"rows": rows, "ratios": per_turn, "interval": [low, high], "goals": show_goals(setting.console, goals)}


async def one_turn(side: Side, number: int) -> float:
    """Output tokens a second."""
    rng = random.Random(f"cost {number}")
    jobs = [partial(side.complete, prompt_of(rng, PROMPT_TOKENS), OUTPUTS) for _ in range(2 * AT_A_TIME)]
    start = side.clock.now()
    answers = await run_jobs(jobs, AT_A_TIME)
    assert not any(answer.num_cached for answer in answers), "nothing is shared"
    return sum(answer.num_tokens for answer in answers) / (side.clock.now() - start)


# ---- the host's part of a step ----


async def measure_host(setting: Setting) -> dict[str, Any]:
    """Prints the table. Returns the same as JSON."""
    num_rounds, num_steps = (1, GROWTH_TOKENS) if setting.quick else (3 * setting.rounds, 8 * GROWTH_TOKENS)
    torch.set_num_threads(1)
    runner = ModelRunner.load(setting.model, device="cpu", page_size=PAGE_SIZE)
    rows: list[dict[str, Any]] = []
    for batch in BATCHES:
        grows, never = [], []
        for _ in range(num_rounds):
            grows.append(host_us(batch, num_steps, GROWS))
            never.append(host_us(batch, num_steps, NEVER_GROWS))
        step_ms = measure(runner, batch, Plan(CONTEXT, 8, setting.rounds), 1).overlap_ms
        share = (median(grows) - median(never)) / 1e3 / step_ms
        of_sides = {"host us, contexts grow": spread(grows), "they never grow": spread(never)}
        rows.append({"batch": batch, **of_sides, "step ms": step_ms, "growth / step": round(share, 4)})

    show_rows(setting.console, "the host's part of a decode step, pages of one token", rows, setting.markdown)
    goals = [Goal("growth / step", max(row["growth / step"] for row in rows), "at most", 0.02)]
    return {"rows": rows, "goals": show_goals(setting.console, goals)}


def host_us(batch: int, num_steps: int, page_size: int) -> float:
    """Microseconds of one step. All contexts grow in the same step of GROWTH_TOKENS, so the mean over those counts."""
    steps, _ = host_times(batch, Plan(CONTEXT, num_steps, 1), page_size=page_size)
    cycles = [steps[start : start + GROWTH_TOKENS] for start in range(0, len(steps), GROWTH_TOKENS)]
    return median(map(mean, cycles)) * 1e6
