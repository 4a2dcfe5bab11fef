"""Prompts that begin alike, with the prefix cache and without it: one system prompt of many requests, and a long chat.

A pair serves them: prompt tokens that prefill computes, KV bytes that come to decode, and TTFT.
"""

import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from bench.memory.figures import Goal, ratios, show_goals, show_rows, spread
from bench.memory.part import Setting
from bench.memory.side import Answer, Side, baton_sides, run_jobs
from bench.turns import in_turn
from loadtest.bench_model import CONFIG
from loadtest.report import percentile
from loadtest.scenarios import PAIR

SYSTEM_TOKENS, SUFFIX_TOKENS = 512, 32
NUM_REQUESTS, AT_A_TIME = 64, 16
NUM_TURNS, TURN_TOKENS, TURN_OUTPUTS = 10, 64, 48
OFF = "--disable-radix-cache"


def serve(setting: Setting) -> Mapping[str, Sequence[str]]:
    """The two sides."""
    fixed = (*PAIR, "--model", str(setting.model))
    return {"cache": fixed, "no cache": (*fixed, OFF)}


def prompt_of(rng: random.Random, num_tokens: int) -> tuple[int, ...]:
    """Random tokens of the model's vocabulary."""
    return tuple(rng.choices(range(3, CONFIG["vocab_size"]), k=num_tokens))


# ---- one system prompt ----


async def measure_system_prompt(setting: Setting) -> dict[str, Any]:
    """64 requests after a first one has ended. Prints the table. Returns the same as JSON."""
    num_requests = 8 if setting.quick else NUM_REQUESTS
    found: dict[str, list[dict[str, float]]] = {}
    async with baton_sides(serve(setting), setting.clock) as sides:
        for number in range(-1, setting.rounds):  # the first one warms up
            for side in in_turn(sides, number):
                row = await one_round(side, number, num_requests)
                if number >= 0:
                    found.setdefault(side.name, []).append(row)

    rows = [{"side": name, **of_rounds(found[name])} for name in serve(setting)]
    about = f"{num_requests} requests, {AT_A_TIME} at a time: {SYSTEM_TOKENS} common tokens, then 1 to {SUFFIX_TOKENS}"
    show_rows(setting.console, about, rows, setting.markdown)
    less = {figure: median(ratios(*(values(found[name], figure) for name in serve(setting)))) for figure in FIGURES}
    setting.console.print("cache / no cache: " + ", ".join(f"{figure} {ratio:.3f}" for figure, ratio in less.items()))
    goals = [Goal(f"{figure}, cache / no cache", less[figure], "at most", 0.1) for figure in FIGURES[:2]]
    return {"rows": rows, "ratios": less, "goals": show_goals(setting.console, goals)}


FIGURES = ("tokens computed", "bytes moved", "TTFT p50 ms")


def values(rounds: Sequence[Mapping[str, float]], figure: str) -> list[float]:
    """One figure of each round."""
    return [row[figure] for row in rounds]


def of_rounds(rounds: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Medians with their spread."""
    return {figure: spread(values(rounds, figure)) for figure in rounds[0]}


async def one_round(side: Side, number: int, num_requests: int) -> dict[str, float]:
    """A system prompt of its own. The first request is not counted."""
    rng = random.Random(f"system prompt {number}")
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


# ---- a chat of ten turns ----


async def measure_chat(setting: Setting) -> dict[str, Any]:
    """Each turn repeats all that was said. Prints the table. Returns the same as JSON."""
    num_turns = 3 if setting.quick else NUM_TURNS
    moved: dict[str, list[float]] = {}
    found: dict[str, list[list[Answer]]] = {name: [] for name in serve(setting)}
    async with baton_sides(serve(setting), setting.clock) as sides:
        for side in sides:  # this warms up too
            moved[side.name] = await moved_by_turn(side, num_turns)
        for number in range(setting.rounds):
            for side in in_turn(sides, number):
                found[side.name].append([answer async for answer in turns_of(side, f"chat {number}", num_turns)])

    rows = list(turn_rows(found, moved))
    title = f"a chat of {num_turns} turns: {TURN_TOKENS} new tokens, {TURN_OUTPUTS} outputs each"
    show_rows(setting.console, title, rows, setting.markdown)
    return {"rows": rows, "goals": []}


async def turns_of(side: Side, seed: str, num_turns: int) -> AsyncIterator[Answer]:
    """The answers of one chat."""
    rng = random.Random(seed)
    history: tuple[int, ...] = ()
    for _ in range(num_turns):
        history += prompt_of(rng, TURN_TOKENS)
        answer = await side.complete(history, TURN_OUTPUTS, return_token_ids=True)
        history += answer.ids
        yield answer


async def moved_by_turn(side: Side, num_turns: int) -> list[float]:
    """The KV bytes that each turn moves."""
    totals = [await side.bytes_moved()]
    async for _ in turns_of(side, "chat", num_turns):
        totals.append(await side.bytes_moved())  # noqa: PERF401 - each is read after its turn
    return [after - before for before, after in pairwise(totals)]


def turn_rows(
    found: Mapping[str, Sequence[Sequence[Answer]]], moved: Mapping[str, Sequence[float]]
) -> Iterator[dict[str, Any]]:
    """A row for each turn. All rounds compute and move the same."""
    for turn, answers in enumerate(zip(*(of_side[0] for of_side in found.values()), strict=True)):
        row: dict[str, Any] = {"turn": turn + 1, "prompt": answers[0].num_prompt}
        for answer, (name, chats) in zip(answers, found.items(), strict=True):
            row[f"{name}: computed"] = answer.num_computed
            row[f"{name}: KB moved"] = round(moved[name][turn] / 1e3)
            row[f"{name}: TTFT ms"] = spread([chat[turn].arrivals[0] * 1e3 for chat in chats])
        yield row
