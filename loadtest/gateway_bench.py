"""`python -m loadtest.gateway_bench`: what the gateway itself costs: its CPU per token, and the time that it adds
before the first token. A real gateway process, workers without a model, streaming clients.

The last line is one JSON object. What it does not know: models.
"""

import argparse
import asyncio
import json
import math
import os
import random
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
from rich.console import Console
from rich.table import Table

from loadtest.fake_pair import FakePair
from loadtest.report import counted
from protocol.errors import ConfigError
from runtime.clock import Clock, MonotonicClock
from runtime.process_life import LAUNCHER_PID
from runtime.settings import GatewaySettings, HttpLimits

START_S = 60.0
WARM_UP_TOKENS = 8
TARGET_CPU_US, TARGET_TTFT_MS = 100.0, 5.0
MODEL_LABEL = re.compile(r',model_name="[^"]*"|model_name="[^"]*",?')


@dataclass(frozen=True)
class Load:
    """What the clients ask for. `step_s` is the pace of the workers: one token for each stream."""

    model: str
    clients: int
    requests: int  # of each client
    prompt_tokens: int
    output_tokens: int
    step_s: float
    vocab_size: int


@dataclass(frozen=True)
class Cost:
    """One run. Milliseconds are of wall clock, microseconds of the gateway's CPU, of all its threads."""

    cpu_us_per_token: float
    cpu_us_per_request: float
    ttft_added_ms: dict[str, float]
    num_tokens: int


class Running(NamedTuple):
    """A gateway process that is ready."""

    url: str
    control: str  # where workers dial
    pid: int


@asynccontextmanager
async def gateway_process(model: str, limits: HttpLimits | None = None) -> AsyncIterator[Running]:
    """A gateway in a process of its own."""
    settings = GatewaySettings(
        model=model, served_model_name="bench", port=0, limits=limits or HttpLimits(), log_level="error"
    )
    read_fd, write_fd = os.pipe()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "gateway", "--settings", settings.to_json(), "--status-fd", str(write_fd)),
        pass_fds=(write_fd,),
        env={**os.environ, LAUNCHER_PID: str(os.getpid())},  # it ends with us, however we end
    )
    os.close(write_fd)
    try:
        async with asyncio.timeout(START_S):
            url, control = await _ready(read_fd)
        yield Running(url, control, child.pid)
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


async def _ready(read_fd: int) -> tuple[str, str]:
    reader = asyncio.StreamReader()
    with os.fdopen(read_fd, "rb") as pipe:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await reader.readline():
                event = json.loads(line)
                if event["event"] == "ready":
                    return event["http"], event["control"]
        finally:
            transport.close()
    raise ConfigError("the gateway did not start; its log says why")


async def stream(url: str, clock: Clock, prompt: list[int], max_tokens: int) -> tuple[float, float]:
    """One streamed completion over a connection of its own: when it was sent and when its first chunk came, in seconds
    of `clock`. ConfigError unless it has all its tokens."""
    where = urlsplit(url)
    body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}).encode()
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    sent_at = clock.now()
    writer.write(head.encode() + body)
    first_at, parts = 0.0, []
    while part := await reader.read(1 << 16):
        parts.append(part)
        if not first_at and b"data: " in part:
            first_at = clock.now()
    writer.close()
    answer = b"".join(parts)
    if answer.count(b'"index":') != max_tokens or b"data: [DONE]" not in answer:
        raise ConfigError(f"a stream went wrong: {answer[:300]!r}")
    return sent_at, first_at


async def run(load: Load) -> Cost:
    """Warms the gateway up, then loads it."""
    clock = MonotonicClock()
    rng = random.Random(0)
    prompts = [
        [rng.randrange(load.vocab_size) for _ in range(load.prompt_tokens)] for _ in range(load.clients * load.requests)
    ]
    async with (
        gateway_process(load.model) as (url, control, pid),
        FakePair(control, clock, load.step_s, load.vocab_size) as pair,
    ):
        await asyncio.gather(*(stream(url, clock, prompt, WARM_UP_TOKENS) for prompt in prompts[: load.clients]))
        before, cpu_before_s = await _numbers(url), cpu_seconds(pid)

        async def client(own: list[list[int]]) -> list[float]:
            added = []
            for prompt in own:
                sent_at, first_at = await stream(url, clock, prompt, load.output_tokens)
                added.append(first_at - sent_at)  # the workers answer at once
            return added

        seen = await asyncio.gather(*(client(prompts[place :: load.clients]) for place in range(load.clients)))
        after, cpu_after_s = await _numbers(url), cpu_seconds(pid)
        assert len(pair.assigned_at) == len(prompts), "every prompt reached the worker"
    return _cost(load, before, after, cpu_after_s - cpu_before_s, sorted(ms for own in seen for ms in own))


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, in nanosecond steps; /proc and /metrics count in steps of 10 ms.
    The clock's number is that of Linux's clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


def _cost(load: Load, before: dict[str, float], after: dict[str, float], cpu_s: float, seen_s: list[float]) -> Cost:
    def grown(name: str) -> float:
        return after[name] - before[name]

    num_tokens = int(grown("baton_generation_tokens_total"))
    added = {
        "client_p50": median(seen_s) * 1e3,
        "client_p99": seen_s[int(0.99 * (len(seen_s) - 1))] * 1e3,
    }
    for side in ("request", "first_token"):
        name = f"baton_gateway_{side}_seconds"
        if name + "_count" in after:
            added[f"{side}_mean"] = grown(name + "_sum") / grown(name + "_count") * 1e3
            added[f"{side}_p99"] = _quantile(name, before, after, 0.99) * 1e3
    if "request_mean" in added:
        added["mean"] = added["request_mean"] + added["first_token_mean"]
    return Cost(
        cpu_us_per_token=cpu_s / num_tokens * 1e6,
        cpu_us_per_request=cpu_s / (load.clients * load.requests) * 1e6,
        ttft_added_ms=added,
        num_tokens=num_tokens,
    )


def _quantile(name: str, before: dict[str, float], after: dict[str, float], share: float) -> float:
    """The upper edge of the bucket in which the quantile lies, in seconds."""
    edges = re.compile(re.escape(name) + r'_bucket{le="(.+)"}')
    grown = {float(found[1]): after[key] - before[key] for key in after if (found := edges.fullmatch(key))}
    total = max(grown.values())
    return min(edge for edge, count in grown.items() if count >= share * total)


async def _numbers(url: str) -> dict[str, float]:
    """Every number of /metrics by its name and labels, without the model's."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        text = await response.text()
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {MODEL_LABEL.sub("", name).replace("{}", ""): float(value) for name, value in lines}


def show(load: Load, costs: Sequence[Cost], console: Console) -> None:
    """The table, and the JSON line for programs: medians of all rounds."""
    cpu = median(each.cpu_us_per_token for each in costs)
    added = {name: round(median(each.ttft_added_ms[name] for each in costs), 3) for name in costs[0].ttft_added_ms}
    console.print(
        f"{load.clients} clients, {load.requests} requests each, {load.prompt_tokens} tokens in, "
        f"{load.output_tokens} out, a token every {load.step_s * 1e3:g} ms; medians of {counted(len(costs), 'round')}"
    )
    table = Table("figure", "value", "target")
    table.add_row("gateway CPU per token (us)", f"{cpu:.1f}", f"<= {TARGET_CPU_US:g}")
    for name, value in added.items():
        table.add_row(f"added to TTFT, {name} (ms)", f"{value:.2f}", f"<= {TARGET_TTFT_MS:g}" if name == "mean" else "")
    console.print(table)
    known = {name: value if math.isfinite(value) else None for name, value in added.items()}  # JSON has no infinity
    print(json.dumps({"gateway": {"cpu_us_per_token": round(cpu, 1), "ttft_added_ms": known, "rounds": len(costs)}}))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; a stream that goes wrong raises."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.gateway_bench",
        description="A gateway alone, with workers that have no model: its CPU per token, and what it adds to TTFT.",
    )
    parser.add_argument("--model", default="models/story", help="folder with a tokenizer (default models/story)")
    parser.add_argument("--vocab", type=int, default=1024, help="its size (default 1024)")
    parser.add_argument("--clients", type=int, default=16, help="streams at a time (default 16)")
    parser.add_argument("--requests", type=int, default=8, help="of each client (default 8)")
    parser.add_argument("--inp", type=int, default=256, help="prompt tokens (default 256)")
    parser.add_argument("--out", type=int, default=64, help="output tokens (default 64)")
    parser.add_argument("--step-ms", type=float, default=10, help="between two tokens of a stream (default 10)")
    parser.add_argument("--rounds", type=int, default=3, help="each a fresh gateway (default 3)")
    asked = parser.parse_args(argv)
    load = Load(
        asked.model, asked.clients, asked.requests, asked.inp, asked.out, asked.step_ms / 1e3, vocab_size=asked.vocab
    )
    costs = [asyncio.run(run(load)) for _ in range(asked.rounds)]
    show(load, costs, Console())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
