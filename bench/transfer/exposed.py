"""`python -m bench.transfer.exposed`: the part of a prompt's KV transfer that its client waits for.

    exposed    from the end of the prompt's computation at prefill until decode can start, by stamps
    share      of TTFT, as the client sees it
    gap        between the first token and the second, as the client sees it

A pair with shm and a pair with zmq run at the same time, each worker on one core; requests alternate between the pairs.
The last line of output is one JSON object.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from bench.turns import in_turn
from loadtest.bench_model import CONFIG, bench_model
from loadtest.deployment import deployed
from loadtest.drive.server import find_model
from loadtest.http_exchange import Server, exchange
from loadtest.report import percentile
from protocol.errors import ConfigError
from runtime.clock import Clock, MonotonicClock

PROMPTS = {512: 20, 2048: 20, 8192: 7}  # tokens: repetitions
BACKENDS = {"shm": "shm", "zmq_tcp": "zmq"}  # name in the results: name for `--transfer-backend`
QUICK_PROMPTS = {512: 3, 2048: 3}
CONTEXT_LENGTH = 8448
MAX_TOKENS = 3
WIDTH = 140  # of the table in a pipe
CPUS = "auto"
WARM_UPS = 1  # of each length, on each side
SERVE = "--prefill 1 --decode 1 --threads 1 --log-level warning --silence-limit 60".split()
COMPUTED, FIRST, DELIVERED, READY = "prompt computed", "first token", "KV delivered", "ready to decode"


@dataclass(frozen=True)
class Plan:
    """What is measured. `prompts`: tokens and repetitions. `kv_tokens`: KV memory of each worker. `cpus`: the workers'
    cores, as for baton serve. `at_once`: requests that start together."""

    prompts: Mapping[int, int]
    folder: str
    vocab_size: int
    kv_tokens: int
    cpus: str = CPUS
    at_once: int = 1


@dataclass(frozen=True)
class Handover:
    """One request, in milliseconds. `exposed_ms` is the sum of `sampled_ms`, `delivered_ms` and `joined_ms`."""

    ttft_ms: float
    exposed_ms: float
    gap_ms: float
    sampled_ms: float  # until prefill has the first token
    delivered_ms: float  # from then until decode has all KV
    joined_ms: float  # from then until the request is in the running batch

    @property
    def share(self) -> float:
        """The exposed share of TTFT."""
        return self.exposed_ms / self.ttft_ms


@dataclass
class _Heard:
    """When tokens arrived, and the time line of the last chunk that had one."""

    arrivals: list[float] = field(default_factory=list)
    moments: dict[str, float] = field(default_factory=dict)
    error: str = ""

    def line(self, now: float, line: bytes) -> bool:
        """Takes one line of the answer. False after the last."""
        if line.strip() == b"data: [DONE]":
            return False
        if line.startswith(b"data:"):
            chunk: dict[str, Any] = orjson.loads(line[5:])
            self.error = self.error or str(chunk.get("error", ""))
            if chunk.get("choices"):
                self.arrivals.append(now)
            for each in chunk.get("timeline") or ():
                self.moments[each["name"]] = each["at_ms"]
        elif line.strip() and not line.startswith(b":"):
            self.error = self.error or line[:200].decode(errors="replace")
        return True


def handover_of(start: float, arrivals: Sequence[float], moments: Mapping[str, float]) -> Handover:
    """From a client's seconds and the time line's milliseconds. ConfigError if one of them is missing."""
    missing = [name for name in (COMPUTED, FIRST, DELIVERED, READY) if name not in moments]
    if missing or len(arrivals) < 2:
        raise ConfigError(f"{len(arrivals)} tokens came, and the time line lacks {', '.join(missing) or 'nothing'}")
    computed, first, delivered, ready = (moments[name] for name in (COMPUTED, FIRST, DELIVERED, READY))
    return Handover(
        ttft_ms=(arrivals[0] - start) * 1e3,
        exposed_ms=ready - computed,
        gap_ms=(arrivals[1] - arrivals[0]) * 1e3,
        sampled_ms=first - computed,
        delivered_ms=delivered - first,
        joined_ms=ready - delivered,
    )


async def hand_over(server: Server, model: str, clock: Clock, prompt: Sequence[int]) -> Handover:
    """One request with its own prompt. ConfigError if it does not end properly."""
    body = {
        "model": model, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True,
        "stream": True, "timeline": True,
    }  # fmt: skip
    heard, start = _Heard(), clock.now()
    status = await exchange(server, clock, "POST", "/v1/completions", orjson.dumps(body), heard.line)
    if status != 200 or heard.error:
        raise ConfigError(f"HTTP {status}: {heard.error}")
    return handover_of(start, heard.arrivals, heard.moments)


Found = dict[int, dict[str, list[Handover]]]  # by prompt tokens and backend


async def hand_overs(plan: Plan, clock: Clock) -> Found:
    """Every length and backend. The backends take turns."""
    rng = random.Random(0)
    memory = ("--max-total-tokens", str(plan.kv_tokens), "--max-running-requests", str(plan.at_once))
    async with AsyncExitStack() as stack:
        sides = {}
        for name, backend in BACKENDS.items():
            arguments = ("--model", plan.folder, *SERVE, *memory, "--cpus", plan.cpus, "--transfer-backend", backend)
            server = Server.at(await stack.enter_async_context(deployed(arguments)), "")
            sides[name] = server, (await find_model(server, clock, None)).model

        found: Found = {}
        for num_tokens, repeat in plan.prompts.items():
            found[num_tokens] = {name: [] for name in sides}
            for turn in range(WARM_UPS + repeat):
                for name in in_turn(sides, turn):
                    prompts = [rng.choices(range(plan.vocab_size), k=num_tokens) for _ in range(plan.at_once)]
                    seen = await asyncio.gather(*(hand_over(*sides[name], clock, prompt) for prompt in prompts))
                    if turn >= WARM_UPS:
                        found[num_tokens][name] += seen
    return found


def kv_bytes(num_tokens: int) -> int:
    """KV bytes of a prompt of the 29M model, in bfloat16."""
    heads, size, layers = (int(CONFIG[name]) for name in ("num_key_value_heads", "head_dim", "num_hidden_layers"))
    return num_tokens * layers * 2 * heads * size * 2


def exposed_table(found: Found) -> Table:
    """Medians of each length and backend, and the 90th percentiles."""
    table = Table(
        "tokens", "backend", "KV MB", "TTFT ms", "exposed ms", "p90", "of TTFT",
        "sampling", "to delivered", "to ready", "gap ms", "p90",
        title="exposed transfer: from the end of a prompt's computation until decode can start",
    )  # fmt: skip
    for num_tokens, by_backend in found.items():
        for name, seen in by_backend.items():

            def mid(figure: str, seen: Sequence[Handover] = seen) -> float:
                return median(float(getattr(each, figure)) for each in seen)

            def high(figure: str, seen: Sequence[Handover] = seen) -> float:
                return percentile([float(getattr(each, figure)) for each in seen], 0.9)

            parts = [mid(each) for each in ("sampled_ms", "delivered_ms", "joined_ms")]
            table.add_row(
                str(num_tokens), name, f"{kv_bytes(num_tokens) / 1e6:.1f}", f"{mid('ttft_ms'):.1f}",
                f"{mid('exposed_ms'):.2f}", f"{high('exposed_ms'):.2f}", f"{mid('share'):.1%}",
                *(f"{part:.2f}" for part in parts), f"{mid('gap_ms'):.1f}", f"{high('gap_ms'):.1f}",
            )  # fmt: skip
    return table


def shares(found: Found) -> dict[str, dict[str, float]]:
    """Median shares of TTFT, by prompt tokens and backend."""
    return {
        str(num_tokens): {name: round(median(each.share for each in seen), 4) for name, seen in by_backend.items()}
        for num_tokens, by_backend in found.items()
    }


def measure(console: Console, quick: bool = False, cpus: str = CPUS, at_once: int = 1) -> dict[str, dict[str, float]]:
    """Prints the table. Returns shares of TTFT by prompt tokens and backend. `quick` only shows that it works."""
    folder, vocab_size = str(bench_model(max_position_embeddings=CONTEXT_LENGTH)), int(CONFIG["vocab_size"])
    plan = Plan(
        QUICK_PROMPTS if quick else PROMPTS, folder, vocab_size, CONTEXT_LENGTH * max(2, at_once), cpus, at_once
    )
    found = asyncio.run(hand_overs(plan, MonotonicClock()))
    console.print(exposed_table(found))
    return shares(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0. A request that goes wrong raises."""
    parser = argparse.ArgumentParser(prog="python -m bench.transfer.exposed", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="few requests, none of 8192 tokens; shows that it works, no more"
    )
    parser.add_argument("--cpus", default=CPUS, help="cores of the workers, as for baton serve (default auto)")
    parser.add_argument("--at-once", type=int, default=1, help="requests that start together (default 1)")
    asked = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    found = measure(console, asked.quick, asked.cpus, asked.at_once)
    print(json.dumps({"exposed": found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
