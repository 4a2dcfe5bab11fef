"""Tokens a second over HTTP of the bundled model, with its draft and without, in turns: one client and many.

Each side is a unified worker behind a gateway. All run at once, and one is loaded at a time. A client asks one of the
held-out prompts whose answers do not end early, some times in a row.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Final

from bench.rounds import compared, ratios, spread, turns
from bench.sheet import Sheet
from bench.side import Side, baton_sides, run_jobs
from loadtest.deployment import UNIFIED
from models.train.draft_text import HELD_OUT_SEED, prompts
from runtime.clock import Clock, MonotonicClock

ANSWER: Final = 96  # tokens
OF_A_CLIENT: Final = 12  # answers in a round
WITHOUT, FIXED, ADAPTIVE = "without", "draft", "adaptive"
DRAFT: Final = ("--speculative-num-steps", "4", "--speculative-adaptive", "false")
GOALS: Final[Mapping[tuple[str, int | None], float]] = {  # side and clients (None: any number) -> the least ratio
    (FIXED, 1): 1.5,
    (FIXED, 4): 1.2,
    (ADAPTIVE, None): 0.97,
}
CLIENTS: Final[Mapping[int, Sequence[str]]] = {  # sides beside the one without a draft
    1: (FIXED, ADAPTIVE),
    4: (FIXED,),
    8: (ADAPTIVE,),
    16: (ADAPTIVE,),
    32: (ADAPTIVE,),
}
ABOUT: Final = f"Answers of {ANSWER} tokens, greedy. *draft*: 4 steps. Ratios are to *without*, round by round."


def served(algorithm: str) -> dict[str, Sequence[str]]:
    """The flags of each side."""
    asked = (*UNIFIED, "--speculative-algorithm", algorithm)
    return {WITHOUT: UNIFIED, FIXED: (*asked, *DRAFT), ADAPTIVE: asked}


async def measure(sheet: Sheet, algorithm: str, clients: Sequence[int], rounds: int) -> None:
    """Writes a table, and what it should show."""
    clock = MonotonicClock()
    async with baton_sides(served(algorithm), clock) as sides:
        by_name = {side.name: side for side in sides}
        asked = await long_prompts(by_name[WITHOUT], max(clients))
        for number in clients:
            chosen = [by_name[name] for name in (WITHOUT, *CLIENTS[number])]
            speeds: dict[str, list[float]] = {side.name: [] for side in chosen}
            for side, at in turns(chosen, rounds, warm_up=1):
                speed = await tokens_per_s(side, asked[:number], clock)
                speeds[side.name] += [speed] if at >= 0 else []
            show(sheet, number, speeds)


async def long_prompts(side: Side, number: int) -> list[tuple[int, ...]]:
    """Prompts whose answers are long enough. RuntimeError if there are too few."""
    asked = prompts(HELD_OUT_SEED, 8 * max(number, 16))
    jobs = [partial(side.complete, prompt, ANSWER, ignore_eos=False) for prompt in asked]
    answers = await run_jobs(jobs, 16)
    long = [prompt for prompt, answer in zip(asked, answers, strict=True) if answer.num_tokens == ANSWER]
    if len(long) < number:
        raise RuntimeError(f"{len(long)} of {len(asked)} answers are long enough, expected {number}")
    return long


async def tokens_per_s(side: Side, asked: Sequence[tuple[int, ...]], clock: Clock) -> float:
    """Of one client for each prompt."""
    began = clock.now()
    jobs = [partial(side.complete, prompt, ANSWER) for prompt in asked] * OF_A_CLIENT
    answers = await run_jobs(jobs, len(asked))
    return sum(answer.num_tokens for answer in answers) / (clock.now() - began)


def show(sheet: Sheet, clients: int, speeds: Mapping[str, Sequence[float]]) -> None:
    """The rows and goals of one number of clients."""
    for name, speed in speeds.items():
        cells = {"clients": clients, "side": name, "tokens/s": spread(speed), **compared(speed, speeds[WITHOUT])}
        sheet.row("Tokens a second over HTTP", cells, ABOUT)
        least = GOALS.get((name, clients), GOALS.get((name, None)))
        if least is not None:
            words = f"over HTTP, clients: {clients}, {name}: tokens/s / {WITHOUT}"
            sheet.goal(words, median(ratios(speed, speeds[WITHOUT])), "at least", least)
