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

from bench.memory.part import Setting
from bench.rounds import ratios, spread, turns
from bench.side import Answer, Side, baton_sides
from loadtest.bench_model import CONFIG
from loadtest.drive.server import find_model
from loadtest.figures.distribution import percentile
from loadtest.peer import ABSENT, peer_executable, peer_running
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


async def measure(setting: Setting) -> None:
    """Writes a table."""
    num_requests, duration_s = (QUICK_REQUESTS, QUICK_S) if setting.quick else (NUM_REQUESTS, DURATION_S)
    traces = [trace(number, num_requests, duration_s) for number in range(setting.rounds + 1)]  # the last one warms up
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

        found: dict[str, list[Replayed]] = {side.name: [] for side in sides}
        for side, number in turns(sides, setting.rounds, warm_up=1):
            replayed = await replay(side, traces[number], number)
            found[side.name] += [replayed] if number >= 0 else []
    show(setting, found, traces[:-1])


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


def show(setting: Setting, found: Mapping[str, Sequence[Replayed]], traces: Sequence[Sequence[TraceRequest]]) -> None:
    """Writes the table and the goals."""
    num_tokens = [sum(request.input_length for request in requests) for requests in traces]
    hits = [unlimited_hits(requests, PAGE_SIZE) for requests in traces]
    bounds = [hit / num for hit, num in zip(hits, num_tokens, strict=True)]
    about = (
        f"{num_tokens[-1]:,} prompt tokens, {POOL_TOKENS:,} KV tokens, pages of {PAGE_SIZE}; bound: an unlimited cache."
    )
    rates = {name: [each.hit_rate for each in of_side] for name, of_side in found.items()}
    firsts = {name: [each.ttft_ms(0.5) for each in of_side] for name, of_side in found.items()}
    for name, of_side in found.items():
        cells = {"side": name, "hit rate": spread(rates[name]), "of the bound": spread(ratios(rates[name], bounds))}
        lasts = spread([each.ttft_ms(0.9) for each in of_side])
        setting.sheet.row("The trace", {**cells, "TTFT p50 ms": spread(firsts[name]), "TTFT p90 ms": lasts}, about)
    if PEER not in found:
        setting.sheet.note(ABSENT)
        return
    setting.sheet.goal("hit rate, Baton / vLLM", median(ratios(rates[OURS], rates[PEER])), "at least", 0.95)
    setting.sheet.goal("TTFT p50, Baton / vLLM", median(ratios(firsts[OURS], firsts[PEER])), "at most", 0.8)
