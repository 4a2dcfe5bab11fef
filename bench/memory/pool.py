"""A decode pool for a quarter of the load: lengths that nobody knows, beside lengths that are known.

    unknown    all requests at once; each may take the whole pool, and ends with a token that only the client knows
    known      the client holds a request back until its whole context fits, so nobody gives way

A run with memory to spare gives the tokens that both must have, in float32. Both sides are one deployment.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.memory.figures import Goal, ratios, show_goals, show_rows, spread
from bench.memory.part import Setting
from bench.memory.side import Answer, Side, baton_sides
from bench.turns import in_turn
from loadtest.bench_model import CONFIG
from loadtest.scenarios import PAIR
from protocol.kv_layout import pages_for

PAGE_SIZE = 16
AMPLE_TOKENS = 32768
LONGEST, SHORTEST = 320, 32  # outputs


@dataclass(frozen=True)
class Request:
    """A prompt, and the tokens that it gets with memory to spare. No other token before is like the last one."""

    seed: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def num_pages(self) -> int:
        """Pages of its whole context."""
        return pages_for(len(self.prompt) + len(self.tokens), PAGE_SIZE)


@dataclass(frozen=True)
class Turn:
    """One round of one side. `first_s`: the longest time from the start until a request had its first token."""

    tokens_per_s: float
    first_s: float
    pause_s: float  # the longest between two tokens of one answer
    num_wrong: int
    gave_way: int


async def measure(setting: Setting) -> dict[str, Any]:
    """Prints the table. Returns the same as JSON."""
    serve = (*PAIR, "--model", str(setting.model), "--dtype", "float32", "--page-size", str(PAGE_SIZE))
    ample = {"ample": (*serve, "--max-total-tokens", str(AMPLE_TOKENS))}
    async with baton_sides(ample, setting.clock) as [side]:
        requests = await learn(side, 6 if setting.quick else 24)

    load_pages = sum(request.num_pages for request in requests)
    num_pages = max(load_pages // 4, *(request.num_pages for request in requests))
    turns: dict[str, list[Turn]] = {"unknown": [], "known": []}
    small = {"small": (*serve, "--max-total-tokens", str(num_pages * PAGE_SIZE))}
    async with baton_sides(small, setting.clock) as [side]:
        for number in range(-1, setting.rounds):  # the first one warms up
            for name in in_turn(turns, number):
                turn = await run(side, requests, num_pages, is_known=name == "known")
                if number >= 0:
                    turns[name].append(turn)

    rows = [row_of(name, of_side) for name, of_side in turns.items()]
    about = f"{len(requests)} requests of {load_pages} pages in all, a pool of {num_pages} pages of {PAGE_SIZE} tokens"
    show_rows(setting.console, about, rows, setting.markdown)

    per_round = ratios(*([turn.tokens_per_s for turn in turns[name]] for name in ("unknown", "known")))
    setting.console.print(f"tokens/s, unknown / known: {spread(per_round)}")
    goals = [
        Goal("tokens/s with unknown lengths / with known ones", median(per_round), "at least", 0.8),
        Goal("answers that differ from those with memory to spare", rows[0]["wrong"], "at most", 0),
        Goal("choices that give way with known lengths", rows[1]["gave way"], "at most", 0),
    ]
    return {"rows": rows, "ratios": per_round, "goals": show_goals(setting.console, goals)}


async def learn(side: Side, num_requests: int) -> list[Request]:
    """The requests with their tokens. A few outputs are long, most are short."""
    rng = random.Random("pool")
    vocab_size = CONFIG["vocab_size"]
    prompts = [tuple(rng.choices(range(3, vocab_size), k=rng.randint(48, 96))) for _ in range(num_requests)]
    answers = await asyncio.gather(
        *(side.complete(prompt, LONGEST, **sampled(seed)) for seed, prompt in enumerate(prompts))
    )

    requests = []
    for seed, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        wanted = min(LONGEST, int(SHORTEST * rng.paretovariate(0.8)))
        requests.append(Request(seed, prompt, up_to_a_new_token(answer.ids, wanted)))
    return requests


def sampled(seed: int) -> dict[str, Any]:
    """Drawn tokens, so that an answer does not repeat itself, from few, so that none hangs on rounding."""
    return {"temperature": 1.0, "top_k": 20, "seed": seed, "return_token_ids": True}


def up_to_a_new_token(ids: Sequence[int], wanted: int) -> tuple[int, ...]:
    """At least `wanted` of `ids`, so that the last one is not among those before. Fewer if there is no such."""
    for end in (*range(wanted, len(ids) + 1), *range(min(wanted, len(ids)), 1, -1)):
        if ids[end - 1] not in ids[: end - 1]:
            return tuple(ids[:end])
    return tuple(ids[:1])


async def run(side: Side, requests: Sequence[Request], num_pages: int, *, is_known: bool) -> Turn:
    """All requests, from an empty cache."""
    await side.flush()
    before = await side.num_retracted()

    async def unknown(request: Request) -> Answer:
        whole_pool = num_pages * PAGE_SIZE - len(request.prompt)
        ends = {"stop_token_ids": [request.tokens[-1]]}
        return await side.complete(request.prompt, whole_pool, **sampled(request.seed), **ends)

    async def known(request: Request) -> Answer:
        return await side.complete(request.prompt, len(request.tokens), **sampled(request.seed))

    start = side.clock.now()
    if is_known:
        answers = await within(requests, num_pages, known)
    else:
        answers = await asyncio.gather(*map(unknown, requests))
    duration_s = side.clock.now() - start

    num_wrong = sum(answer.ids != request.tokens for answer, request in zip(answers, requests, strict=True))
    return Turn(
        tokens_per_s=sum(answer.num_tokens for answer in answers) / duration_s,
        first_s=max(answer.sent_at + answer.arrivals[0] for answer in answers) - start,
        pause_s=max(answer.longest_pause_s for answer in answers),
        num_wrong=num_wrong,
        gave_way=int(await side.num_retracted() - before),
    )


async def within(
    requests: Sequence[Request], num_pages: int, send: Callable[[Request], Awaitable[Answer]]
) -> list[Answer]:
    """Sends requests in order, each as soon as it fits beside those that run."""
    free, ended = num_pages, asyncio.Event()

    async def one(request: Request) -> Answer:
        nonlocal free
        answer = await send(request)
        free += request.num_pages
        ended.set()
        return answer

    async with asyncio.TaskGroup() as group:
        sent = []
        for request in requests:
            while request.num_pages > free:
                await ended.wait()
                ended.clear()
            free -= request.num_pages
            sent.append(group.create_task(one(request)))
    return [task.result() for task in sent]


def row_of(name: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """The figures of one side."""
    return {
        "lengths": name,
        "tokens/s": spread([turn.tokens_per_s for turn in turns]),
        "wrong": sum(turn.num_wrong for turn in turns),
        "gave way": sum(turn.gave_way for turn in turns),
        "longest wait for a first token s": spread([turn.first_s for turn in turns]),
        "longest pause s": spread([turn.pause_s for turn in turns]),
    }
