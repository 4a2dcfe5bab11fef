"""`python -m bench.gateway`: the gateway's CPU per token, and the time that it adds before the first token.

A real gateway process serves streaming clients from workers without a model. Then many streams run beside long prompts
(crowd.py). The last line of output is one JSON object.
"""

import argparse
import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.gateway.crowd import CrowdLoad, measure_crowd
from bench.gateway.fake_pair import FakePair
from bench.gateway.lone_gateway import cpu_seconds, gateway_process, metrics_of
from bench.rounds import spread
from bench.sheet import Printed, Sheet
from loadtest.figures.distribution import percentile
from runtime.clock import MonotonicClock

WARM_UP_TOKENS = 8
BESIDE = (500_000, 7_900_000)
TARGET_CPU_US, TARGET_TTFT_MS = 100.0, 5.0
CPU, ADDED = "CPU us a token", "added to TTFT, ms"
ABOUT = (
    "*added to TTFT*: the gateway's own mean; *client*: TTFT as a client sees it. Medians of rounds, and their range."
)


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


async def run(load: Load) -> dict[str, float]:
    """The figures of one gateway, which is warmed up, then loaded. CPU times are of all its threads."""
    clock, rng = MonotonicClock(), random.Random(0)
    prompts = [
        [rng.randrange(load.vocab_size) for _ in range(load.prompt_tokens)] for _ in range(load.clients * load.requests)
    ]
    async with (
        gateway_process(load.model, clock) as (side, control, pid),
        FakePair(control, clock, load.step_s, load.vocab_size) as pair,
    ):
        await asyncio.gather(*(side.complete(prompt, WARM_UP_TOKENS) for prompt in prompts[: load.clients]))
        before, cpu_s = await metrics_of(side), cpu_seconds(pid)

        async def client(own: list[list[int]]) -> list[float]:
            added = []
            for prompt in own:
                answer = await side.complete(prompt, load.output_tokens)
                assert answer.num_tokens == load.output_tokens, "the stream was whole"
                added.append(answer.arrivals[0])  # the workers answer at once
            return added

        seen = await asyncio.gather(*(client(prompts[index :: load.clients]) for index in range(load.clients)))
        after, cpu_s = await metrics_of(side), cpu_seconds(pid) - cpu_s
        assert len(pair.assigned_at) == len(prompts), "every prompt reached the worker"

    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    seen_ms = [seconds * 1e3 for own in seen for seconds in own]
    sides = [f"baton_gateway_{side}_seconds" for side in ("request", "first_token")]
    return {
        CPU: cpu_s / grown["baton_generation_tokens_total"] * 1e6,
        "CPU us a request": cpu_s / len(prompts) * 1e6,
        ADDED: sum(grown[f"{side}_sum"] / grown[f"{side}_count"] for side in sides) * 1e3,
        "client p50, ms": median(seen_ms),
        "client p99, ms": percentile(seen_ms, 0.99),
    }


def measure(load: Load, rounds: int, sheet: Sheet) -> None:
    """Writes a table. Each round has a gateway of its own."""
    by_round = [asyncio.run(run(load)) for _ in range(rounds)]
    figures = {name: [of_round[name] for of_round in by_round] for name in by_round[0]}
    title = (
        f"{load.clients} clients, {load.requests} requests each, {load.prompt_tokens} tokens in,"
        f" {load.output_tokens} out, a token every {load.step_s * 1e3:g} ms"
    )
    sheet.row(title, {name: spread(values) for name, values in figures.items()}, ABOUT)
    sheet.goal(CPU, median(figures[CPU]), "at most", TARGET_CPU_US)
    sheet.goal(ADDED, median(figures[ADDED]), "at most", TARGET_TTFT_MS)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0. A stream that goes wrong raises."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", default="models/story", help="folder with a tokenizer (default models/story)")
    add("--vocab", type=int, default=1024, help="its size (default 1024)")
    add("--clients", type=int, default=16, help="streams at a time (default 16)")
    add("--requests", type=int, default=8, help="of each client (default 8)")
    add("--inp", type=int, default=256, help="prompt tokens (default 256)")
    add("--out", type=int, default=64, help="output tokens (default 64)")
    add("--step-ms", type=float, default=10, help="between two tokens of a stream (default 10)")
    add("--rounds", type=int, default=3, help="each a fresh gateway (default 3)")
    add("--streams", type=int, default=512, help="beside long prompts; 0: none (default 512)")
    add("--streams-step-ms", type=float, default=100, help="between two of their tokens (default 100)")
    add("--streams-s", type=float, default=10, help="how long they run, in seconds (default 10)")
    add("--beside", type=int, nargs="*", default=BESIDE, help="bytes of prompts (default 0.5 and 7.9 MB)")
    asked = parser.parse_args(argv)

    sheet, sizes = Printed("gateway"), (asked.clients, asked.requests, asked.inp, asked.out)
    measure(Load(asked.model, *sizes, asked.step_ms / 1e3, asked.vocab), asked.rounds, sheet)
    if asked.streams:
        step_s, beside = asked.streams_step_ms / 1e3, tuple(asked.beside)
        crowd = CrowdLoad(asked.model, asked.vocab, asked.streams, step_s, asked.streams_s, beside)
        asyncio.run(measure_crowd(crowd, sheet))
    return sheet.end()


if __name__ == "__main__":
    raise SystemExit(main())
