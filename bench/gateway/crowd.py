"""Many streams beside long prompts: the longest gap between two tokens of a stream, the gateway's CPU and memory.

The long prompts begin when all streams have their first token. This process holds all streams and workers, so a gap may
be its own fault: how late its clock ticks is measured too.
"""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, nan
from pathlib import Path

from bench.gateway.fake_pair import CONTEXT_LENGTH, FakePair
from bench.gateway.lone_gateway import Running, cpu_seconds, gateway_process, metrics_of, peak_memory_mb
from bench.gateway.long_context import long_context
from bench.sheet import Sheet
from bench.side import Answer, Side
from loadtest.drive.own_load import OwnWatch
from loadtest.http_exchange import ask, refusal
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock

TARGET_GAP_MS = 250.0
SHARE_BESIDE = 0.7  # part of the streams' time in which long prompts are sent
GAP = "longest gap, ms"
ABOUT = "The gap is between two reads of one stream. *client late*: the greatest delay of the measuring process itself."
WORDS = "once upon a time there was a little girl who lived in a village by the forest, and she had 3 cats. "


@dataclass(frozen=True)
class CrowdLoad:
    """Streams that run for `seconds`, a token every `step_s`; beside them prompts of these lengths, one at a time."""

    model: str
    vocab_size: int
    streams: int
    step_s: float
    seconds: float
    beside_bytes: tuple[int, ...]


async def measure_crowd(load: CrowdLoad, sheet: Sheet) -> None:
    """A line for the streams alone, then one for each length of the prompts beside them. One gateway serves all."""
    clock = MonotonicClock()
    title = f"{load.streams} streams, a token every {load.step_s * 1e3:g} ms, beside prompts one at a time"
    with long_context(Path(load.model), CONTEXT_LENGTH) as folder:
        async with (
            gateway_process(str(folder), clock) as gateway,
            FakePair(gateway.control, clock, load.step_s, load.vocab_size),
        ):
            for num_bytes in (0, *load.beside_bytes):
                cells = await _row(load, gateway, num_bytes)
                sheet.row(title, cells, ABOUT)
                if isfinite(gap_ms := cells[GAP]):
                    sheet.goal(f"{num_bytes:,} bytes: {GAP}", gap_ms, "at most", TARGET_GAP_MS)


async def _row(load: CrowdLoad, gateway: Running, num_bytes: int) -> dict[str, float]:
    side, clock, num_running, all_run = gateway.side, gateway.side.clock, 0, asyncio.Event()

    def one_runs() -> None:
        nonlocal num_running
        num_running += 1
        if num_running == load.streams:
            all_run.set()

    async with asyncio.TaskGroup() as tasks:
        num_tokens = max(2, round(load.seconds / load.step_s))
        prompts = [[num_bytes % load.vocab_size, index % load.vocab_size, 1] for index in range(load.streams)]
        running = [tasks.create_task(side.complete(prompt, num_tokens, one_runs)) for prompt in prompts]
        await all_run.wait()
        own = OwnWatch(clock)
        watching = tasks.create_task(own.run())

        begun, cpu_s, before = clock.now(), cpu_seconds(gateway.pid), await metrics_of(side)
        num_beside = await _prompts_beside(side, num_bytes, begun + SHARE_BESIDE * load.seconds)
        ended, cpu_s, after = clock.now(), cpu_seconds(gateway.pid) - cpu_s, await metrics_of(side)
        watching.cancel()

    name = "baton_generation_tokens_total"
    return {
        "beside, bytes": num_bytes,
        "prompts": num_beside,
        GAP: longest_gap_s([stream.result() for stream in running], begun, ended) * 1e3,
        "client late, ms": own.load().lag_max_ms,
        "CPU us a token": cpu_s / max(1.0, after[name] - before[name]) * 1e6,
        "peak memory, MiB": peak_memory_mb(gateway.pid),
    }


async def _prompts_beside(side: Side, num_bytes: int, until: float) -> int:
    """Sends prompts one after another and returns their number. ConfigError for any answer but 200 and too long."""
    if not num_bytes:
        await asyncio.sleep(until - side.clock.now())
        return 0

    text = (WORDS * (num_bytes // len(WORDS) + 1))[:num_bytes]
    body, num_sent = json.dumps({"prompt": text, "max_tokens": 1}).encode(), 0
    while not num_sent or side.clock.now() < until:  # at least one, however slow the machine is
        status, answer = await ask(side.server, side.clock, "POST", "/v1/completions", body)
        num_sent += 1
        if status != 200 and json.loads(answer)["error"]["code"] != "context_length_exceeded":
            raise ConfigError(f"a prompt of {num_bytes} bytes went wrong: {refusal(status, answer)}")
    return num_sent


def longest_gap_s(streams: Iterable[Answer], begun: float, ended: float) -> float:
    """The longest pause between two reads of one stream, of those that overlap [begun, ended)."""
    pauses = (pause for stream in streams for pause in pairwise(stream.sent_at + at for at in stream.arrivals))
    return max((after - before for before, after in pauses if after > begun and before < ended), default=nan)
