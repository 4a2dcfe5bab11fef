"""The part of a prompt's KV transfer that its client waits for.

    exposed    from the end of the prompt's computation at prefill until decode can start, by stamps
    share      of TTFT, as the client sees it
    gap        between the first token and the second, as the client sees it

A pair with shm and a pair with zmq run at the same time, each worker on one core; requests alternate between the pairs.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from bench.records import Value
from bench.rounds import turns
from bench.sheet import Sheet
from bench.side import Answer, baton_sides
from loadtest.bench_model import CONFIG, bench_model
from loadtest.figures.distribution import percentile
from protocol.errors import ConfigError
from runtime.clock import Clock, MonotonicClock

PROMPTS = {512: 20, 2048: 20, 8192: 7}  # tokens: repetitions
BACKENDS = {"shm": "shm", "zmq_tcp": "zmq"}  # name in the results: name for `--transfer-backend`
QUICK_PROMPTS = {512: 3, 2048: 3}
CONTEXT_LENGTH = 8448
MAX_TOKENS = 3
WARM_UPS = 1  # of each length, on each side
SERVE = "--prefill 1 --decode 1 --threads 1 --log-level warning --silence-limit 60".split()
SHARE = 0.05  # of TTFT, at most
PARTS = ("ttft_ms", "exposed_ms", "sampled_ms", "delivered_ms", "joined_ms", "gap_ms")  # of Handover
ABOUT = "Milliseconds, medians: from the end of a prompt's computation until decode can start. *gap*: to token 2."
COMPUTED, FIRST, DELIVERED, READY = "prompt computed", "first token", "KV delivered", "ready to decode"


@dataclass(frozen=True)
class Plan:
    """What is measured. `prompts`: tokens and repetitions. `kv_tokens`: KV memory of each worker. `at_once`: requests
    that start together."""

    prompts: Mapping[int, int]
    folder: str
    vocab_size: int
    kv_tokens: int
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


def handover_of(answer: Answer) -> Handover:
    """From a client's seconds and the time line's milliseconds. ConfigError if one of them is missing."""
    moments, arrivals = answer.moments, answer.arrivals
    missing = [name for name in (COMPUTED, FIRST, DELIVERED, READY) if name not in moments]
    if missing or len(arrivals) < 2:
        raise ConfigError(f"{len(arrivals)} tokens came, and the time line lacks {', '.join(missing) or 'nothing'}")
    computed, first, delivered, ready = (moments[name] for name in (COMPUTED, FIRST, DELIVERED, READY))
    return Handover(
        ttft_ms=arrivals[0] * 1e3,
        exposed_ms=ready - computed,
        gap_ms=(arrivals[1] - arrivals[0]) * 1e3,
        sampled_ms=first - computed,
        delivered_ms=delivered - first,
        joined_ms=ready - delivered,
    )


Found = dict[int, dict[str, list[Handover]]]  # by prompt tokens and backend


async def hand_overs(plan: Plan, clock: Clock) -> Found:
    """Every length and backend. The backends take turns."""
    rng = random.Random(0)
    memory = ("--max-total-tokens", str(plan.kv_tokens), "--max-running-requests", str(plan.at_once))
    fixed = ("--model", plan.folder, *SERVE, *memory, "--transfer-backend")
    async with baton_sides({name: (*fixed, backend) for name, backend in BACKENDS.items()}, clock) as sides:
        found: Found = {}
        for num_tokens, repeat in plan.prompts.items():
            found[num_tokens] = {side.name: [] for side in sides}
            for side, number in turns(sides, repeat, WARM_UPS):
                prompts = [rng.choices(range(plan.vocab_size), k=num_tokens) for _ in range(plan.at_once)]
                seen = await asyncio.gather(*(side.complete(each, MAX_TOKENS, timeline=True) for each in prompts))
                found[num_tokens][side.name] += map(handover_of, seen) if number >= 0 else ()
    return found


def kv_bytes(num_tokens: int) -> int:
    """KV bytes of a prompt of the 29M model, in bfloat16."""
    heads, size, layers = (int(CONFIG[name]) for name in ("num_key_value_heads", "head_dim", "num_hidden_layers"))
    return num_tokens * layers * 2 * heads * size * 2


def write(sheet: Sheet, found: Found) -> None:
    """A line for each length and backend: medians, and the 90th percentiles."""
    for num_tokens, by_backend in found.items():
        for name, seen in by_backend.items():
            figures = {each: [float(getattr(one, each)) for one in seen] for each in (*PARTS, "share")}
            cells: dict[str, Value] = {"tokens": num_tokens, "backend": name, "KV MB": kv_bytes(num_tokens) / 1e6}
            cells |= {each.removesuffix("_ms"): median(figures[each]) for each in figures}
            cells |= {f"{each}, p90": percentile(figures[f"{each}_ms"], 0.9) for each in ("exposed", "gap")}
            sheet.row("Exposed transfer", cells, ABOUT)
            sheet.goal(f"{num_tokens} tokens, {name}: share of TTFT", median(figures["share"]), "at most", SHARE)


def measure(sheet: Sheet, quick: bool) -> None:
    """Writes the table. `quick` only shows that it works."""
    folder, vocab_size = str(bench_model(max_position_embeddings=CONTEXT_LENGTH)), int(CONFIG["vocab_size"])
    plan = Plan(QUICK_PROMPTS if quick else PROMPTS, folder, vocab_size, 2 * CONTEXT_LENGTH)
    write(sheet, asyncio.run(hand_overs(plan, MonotonicClock())))
