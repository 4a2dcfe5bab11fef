"""The trace on a unified worker of Baton, and on vLLM with its prefix cache on: the same KV tokens, pages and arrivals.

    hit rate = prompt tokens that were cached / prompt tokens

Each round has prompts of its own. Both servers run all the time, and one of them is loaded.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.memory.figures import Goal, ratios, show_goals, show_rows, spread
from bench.memory.part import Setting
from bench.memory.side import Answer, Side, baton_sides
from bench.turns import in_turn
from loadtest.bench_model import CONFIG
from loadtest.drive.server import find_model
from loadtest.peer import ABSENT, peer_executable, peer_running
from loadtest.report import percentile
from loadtest.scenarios import OURS, PEER, UNIFIED
from loadtest.work.trace import BLOCK_TOKENS, TraceRequest, prompt_of, trace

PAGE_SIZE = 32
POOL_TOKENS = 16384
NUM_REQUESTS, DURATION_S = 160, 40.0
QUICK_REQUESTS, QUICK_S = 8, 2.0


@dataclass(frozen=True)
class Replayed:
    """One round of one side."""

    answers: Sequence[Answer]

    @property
    def hit_rate(self) -> float:
        """The share of all prompt tokens that were cached."""
        return sum(answer.num_cached for answer in self.answers) / sum(answer.num_prompt for answer in self.answers)

    def ttft_ms(self, share: float) -> float:
        """A percentile."""
        return percentile([answer.arrivals[0] * 1e3 for answer in self.answers], share)


async def measure(setting: Setting) -> dict[str, Any]:
    """Prints the table. Returns the same as JSON."""
    num_requests, duration_s = (QUICK_REQUESTS, QUICK_S) if setting.quick else (NUM_REQUESTS, DURATION_S)
    found: dict[str, list[Replayed]] = {}
    bounds = []
    async with AsyncExitStack() as stack:
        serve = (*UNIFIED, "--model", str(setting.model), "--page-size", str(PAGE_SIZE))
        ours = {OURS: (*serve, "--max-total-tokens", str(POOL_TOKENS))}
        sides = await stack.enter_async_context(baton_sides(ours, setting.clock))
        executable = peer_executable(os.environ)
        if executable is not None:
            more = ("--block-size", str(PAGE_SIZE), "--num-gpu-blocks-override", str(POOL_TOKENS // PAGE_SIZE))
            flags = (*more, "--enable-prefix-caching", "--enable-prompt-tokens-details")
            peer = await stack.enter_async_context(peer_running(setting.clock, executable, setting.model, flags))
            model = (await find_model(peer.server, setting.clock, None)).model
            sides.append(Side(PEER, peer.server, model, setting.clock))

        for number in range(-1, setting.rounds):  # the first one warms up
            requests = trace(number, num_requests, duration_s if number >= 0 else duration_s / 2)
            for side in in_turn(sides, number):
                replayed = await replay(side, requests, number)
                if number >= 0:
                    found.setdefault(side.name, []).append(replayed)
            if number >= 0:
                num_tokens = sum(request.input_length for request in requests)
                bounds.append(unlimited_hits(requests, PAGE_SIZE) / num_tokens)
    return show(setting, found, bounds, requests)


async def replay(side: Side, requests: Sequence[TraceRequest], seed: int) -> Replayed:
    """Sends each request at its time, however many still run."""
    prompts = [prompt_of(request, seed, CONFIG["vocab_size"]) for request in requests]
    start = side.clock.now()

    async def one(request: TraceRequest, prompt: list[int]) -> Answer:
        await asyncio.sleep(start + request.timestamp / 1e3 - side.clock.now())
        return await side.complete(prompt, request.output_length)

    return Replayed(await asyncio.gather(*map(one, requests, prompts)))


def unlimited_hits(requests: Sequence[TraceRequest], page_size: int) -> int:
    """Prompt tokens in the cache if it forgets nothing and each request ends before the next. One token is computed.

    A page belongs to one block.
    """
    assert BLOCK_TOKENS % page_size == 0, "pages do not cross blocks"
    known: set[int | str] = set()
    hits = 0
    for request in requests:
        num_known = 0
        while num_known < len(request.hash_ids) and request.hash_ids[num_known] in known:
            num_known += 1
        most = min(num_known * BLOCK_TOKENS, request.input_length - 1)
        hits += most - most % page_size
        known.update(request.hash_ids)
    return hits


def show(
    setting: Setting, found: Mapping[str, Sequence[Replayed]], bounds: Sequence[float], last: Sequence[TraceRequest]
) -> dict[str, Any]:
    """Prints the table and the goals. `last`: the requests of the last round."""
    rows = [
        {
            "side": name,
            "hit rate": spread([each.hit_rate for each in of_side]),
            "of the bound": spread(ratios([each.hit_rate for each in of_side], bounds)),
            "TTFT p50 ms": spread([each.ttft_ms(0.5) for each in of_side]),
            "TTFT p90 ms": spread([each.ttft_ms(0.9) for each in of_side]),
        }
        for name, of_side in found.items()
    ]
    num_tokens = sum(request.input_length for request in last)
    title = (
        f"{len(last)} requests of the trace's form, {num_tokens:,} prompt tokens; {POOL_TOKENS:,} KV tokens, pages of "
        f"{PAGE_SIZE}; an unlimited cache has {spread(bounds)} of them"
    )
    show_rows(setting.console, title, rows, setting.markdown)
    if PEER not in found:
        setting.console.print(ABSENT)
        return {"rows": rows, "bounds": bounds, "goals": []}

    hits = ratios(*([each.hit_rate for each in found[name]] for name in (OURS, PEER)))
    ttft = ratios(*([each.ttft_ms(0.5) for each in found[name]] for name in (OURS, PEER)))
    setting.console.print(f"Baton / vLLM: hit rate {spread(hits)}, TTFT p50 {spread(ttft)}")
    goals = [
        Goal("hit rate, Baton / vLLM", median(hits), "at least", 0.95),
        Goal("TTFT p50, Baton / vLLM", median(ttft), "at most", 0.8),
    ]
    return {
        "rows": rows,
        "bounds": bounds,
        "hit_ratios": hits,
        "ttft_ratios": ttft,
        "goals": show_goals(setting.console, goals),
    }
