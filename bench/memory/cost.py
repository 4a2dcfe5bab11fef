"""What the cache costs when no two prompts begin alike: tokens/s with it and without it, in many short turns."""

import random
from functools import partial
from statistics import median
from typing import Final

from bench.memory.part import Setting
from bench.memory.shared import OFF, prompt_of
from bench.memory.side import Side, baton_sides, run_jobs
from bench.rounds import compared, ratios, spread, turns
from loadtest.scenarios import UNIFIED

TURNS_A_ROUND: Final = 8
AT_A_TIME: Final = 16
PROMPT_TOKENS, OUTPUTS = 256, 64
POOL_TOKENS: Final = 16384  # the cache is soon full, so each prompt is looked up and kept, and others leave for it
WARM_UP: Final = 2  # turns, which also fill the cache


async def measure_served(setting: Setting) -> None:
    """Writes a table."""
    fixed = (*UNIFIED, "--model", str(setting.model), "--max-total-tokens", str(POOL_TOKENS))
    speeds: dict[str, list[float]] = {"cache": [], "no cache": []}
    num_turns = 1 if setting.quick else TURNS_A_ROUND * setting.rounds
    async with baton_sides({"cache": fixed, "no cache": (*fixed, OFF)}, setting.clock) as sides:
        for side, number in turns(sides, num_turns, WARM_UP):
            speed = await one_turn(side, random.Random(f"cost {number}"))
            speeds[side.name] += [speed] if number >= 0 else []

    about = f"{num_turns} turns of {2 * AT_A_TIME} requests, {PROMPT_TOKENS} tokens in, {OUTPUTS} out."
    for name, found in speeds.items():
        cells = {"side": name, "tokens/s": spread(found), **compared(found, speeds["no cache"])}
        setting.sheet.row("Nothing is shared", cells, about)
    ratio = median(ratios(speeds["cache"], speeds["no cache"]))
    setting.sheet.goal("tokens/s, cache / no cache", ratio, "at least", 0.98)


async def one_turn(side: Side, rng: random.Random) -> float:
    """Output tokens a second."""
    jobs = [partial(side.complete, prompt_of(rng, PROMPT_TOKENS), OUTPUTS) for _ in range(2 * AT_A_TIME)]
    start = side.clock.now()
    answers = await run_jobs(jobs, AT_A_TIME)
    assert not any(answer.num_cached for answer in answers), "nothing is shared"
    return sum(answer.num_tokens for answer in answers) / (side.clock.now() - start)
