"""`python -m bench.gateway`: the gateway's CPU per token, and the time that it adds before the first token.

    tokens    a gateway process serves streaming clients from workers without a model
    crowd     many streams run beside long prompts (crowd.py)
    tools     streams with calls of tools beside streams of text (tool_tokens.py)
    turns     the second turn of a conversation with many tools, served by a pair (second_turn.py)

The last line of output is one JSON object.
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
from bench.gateway.second_turn import TurnsLoad, measure_second_turns
from bench.gateway.tool_text import TEMPLATE
from bench.gateway.tool_tokens import ToolLoad, measure_tool_tokens
from bench.rounds import spread
from bench.sheet import Printed, Sheet
from loadtest.figures.distribution import percentile
from runtime.clock import MonotonicClock

PARTS = ("tokens", "crowd", "tools", "turns")
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


def flags() -> argparse.ArgumentParser:
    """Those of all parts."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--only", nargs="+", choices=PARTS, default=PARTS, help=f"parts (default {' '.join(PARTS)})")
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
    add("--chat-template", default=TEMPLATE, help=f"one that writes tools (default {TEMPLATE})")
    add("--tool-out", type=int, default=512, help="output tokens of streams with calls (default 512)")
    add("--tools", type=int, default=50, help="of the conversations (default 50)")
    add("--conversations", type=int, default=5, help="of two turns (default 5)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0. A stream that goes wrong raises."""
    asked = flags().parse_args(argv)
    sheet, step_s, template = Printed("gateway"), asked.step_ms / 1e3, asked.chat_template
    if "tokens" in asked.only:
        sizes = (asked.clients, asked.requests, asked.inp, asked.out)
        measure(Load(asked.model, *sizes, step_s, asked.vocab), asked.rounds, sheet)

    if "crowd" in asked.only and asked.streams:
        streams = (asked.streams, asked.streams_step_ms / 1e3, asked.streams_s)
        asyncio.run(measure_crowd(CrowdLoad(asked.model, asked.vocab, *streams, tuple(asked.beside)), sheet))

    if "tools" in asked.only:
        load = ToolLoad(asked.model, template, asked.vocab, asked.clients, asked.tool_out, step_s)
        measure_tool_tokens(load, asked.rounds, sheet)

    if "turns" in asked.only:
        turns = TurnsLoad(asked.model, template, asked.conversations, asked.tools)
        asyncio.run(measure_second_turns(turns, sheet))
    return sheet.end()


if __name__ == "__main__":
    raise SystemExit(main())
