"""`python -m bench.gateway`: the gateway's CPU per token, and the time that it adds before the first token.

A real gateway process serves streaming clients from workers without a model. Then many streams run beside long prompts
(crowd.py). The last line of output is one JSON object.
"""

import argparse
import asyncio
import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.gateway.crowd import Crowd, CrowdLoad, crowd_json, crowd_table, measure_crowd
from bench.gateway.fake_pair import FakePair
from bench.gateway.lone_gateway import cpu_seconds, gateway_process, metrics_of, stream
from loadtest.report import counted
from runtime.clock import MonotonicClock

WARM_UP_TOKENS = 8
TARGET_CPU_US, TARGET_TTFT_MS = 100.0, 5.0


@dataclass(frozen=True)
class Load:
    """What the clients ask for. The workers send one token for each stream every `step_s`."""

    model: str
    clients: int
    requests: int  # of each client
    prompt_tokens: int
    output_tokens: int
    step_s: float
    vocab_size: int


@dataclass(frozen=True)
class Cost:
    """One run. Milliseconds are wall-clock time, microseconds the CPU time of all the gateway's threads."""

    cpu_us_per_token: float
    cpu_us_per_request: float
    ttft_added_ms: dict[str, float]
    num_tokens: int


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
        before, cpu_before_s = await metrics_of(url), cpu_seconds(pid)

        async def client(own: list[list[int]]) -> list[float]:
            added = []
            for prompt in own:
                streamed = await stream(url, clock, prompt, load.output_tokens)
                added.append(streamed.token_times[0] - streamed.sent_at)  # the workers answer at once
            return added

        seen = await asyncio.gather(*(client(prompts[place :: load.clients]) for place in range(load.clients)))
        after, cpu_after_s = await metrics_of(url), cpu_seconds(pid)
        assert len(pair.assigned_at) == len(prompts), "every prompt reached the worker"
    return _cost(load, before, after, cpu_after_s - cpu_before_s, sorted(ms for own in seen for ms in own))


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


def show(load: Load, costs: Sequence[Cost], crowd: CrowdLoad, rows: Sequence[Crowd], console: Console) -> None:
    """Prints the tables and a line of JSON: medians of all rounds."""
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

    if rows:
        console.print(crowd_table(crowd, rows))

    known = {name: value if math.isfinite(value) else None for name, value in added.items()}  # JSON has no infinity
    figures = {"cpu_us_per_token": round(cpu, 1), "ttft_added_ms": known, "rounds": len(costs)}
    print(json.dumps({"gateway": figures | {"crowd": crowd_json(rows)}}))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0. A stream that goes wrong raises."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gateway",
        description="A gateway alone, with workers that have no model: its CPU per token, what it adds to TTFT, "
        "and what long prompts do to many streams.",
    )
    parser.add_argument("--model", default="models/story", help="folder with a tokenizer (default models/story)")
    parser.add_argument("--vocab", type=int, default=1024, help="its size (default 1024)")
    parser.add_argument("--clients", type=int, default=16, help="streams at a time (default 16)")
    parser.add_argument("--requests", type=int, default=8, help="of each client (default 8)")
    parser.add_argument("--inp", type=int, default=256, help="prompt tokens (default 256)")
    parser.add_argument("--out", type=int, default=64, help="output tokens (default 64)")
    parser.add_argument("--step-ms", type=float, default=10, help="between two tokens of a stream (default 10)")
    parser.add_argument("--rounds", type=int, default=3, help="each a fresh gateway (default 3)")
    parser.add_argument("--streams", type=int, default=512, help="beside long prompts; 0: none (default 512)")
    parser.add_argument("--streams-step-ms", type=float, default=100, help="between two of their tokens (default 100)")
    parser.add_argument("--streams-s", type=float, default=10, help="how long they run, in seconds (default 10)")
    parser.add_argument(
        "--beside", type=int, nargs="*", default=[500_000, 7_900_000], help="bytes of prompts (default 0.5 and 7.9 MB)"
    )
    asked = parser.parse_args(argv)

    load = Load(
        asked.model, asked.clients, asked.requests, asked.inp, asked.out, asked.step_ms / 1e3, vocab_size=asked.vocab
    )

    costs = [asyncio.run(run(load)) for _ in range(asked.rounds)]
    crowd = CrowdLoad(
        asked.model, asked.vocab, asked.streams, asked.streams_step_ms / 1e3, asked.streams_s, tuple(asked.beside)
    )
    rows = asyncio.run(measure_crowd(crowd)) if crowd.streams else []
    show(load, costs, crowd, rows, Console())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
