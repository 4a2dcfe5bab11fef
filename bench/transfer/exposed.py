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
from bench.transfer.blocks import SMALL_MODEL
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


def handover_of(answer: Answer) -> dict[str, float]:
    """The figures of one request, in milliseconds, from a client's seconds and the time line's milliseconds. `exposed`
    is the sum of three: `sampled`, until prefill has the first token; `delivered`, from then until decode has all KV;
    `joined`, from then until the request is in the running batch. ConfigError if a moment is missing."""
    moments, arrivals = answer.moments, answer.arrivals
    missing = [name for name in (COMPUTED, FIRST, DELIVERED, READY) if name not in moments]
    if missing or len(arrivals) < 2:
        raise ConfigError(f"{len(arrivals)} tokens came, and the time line lacks {', '.join(missing) or 'nothing'}")
    computed, first, delivered, ready = (moments[name] for name in (COMPUTED, FIRST, DELIVERED, READY))
    ttft, exposed = arrivals[0] * 1e3, ready - computed
    handover = {"ttft": ttft, "exposed": exposed, "sampled": first - computed, "delivered": delivered - first}
    return handover | {"joined": ready - delivered, "gap": (arrivals[1] - arrivals[0]) * 1e3, "share": exposed / ttft}


Found = dict[int, dict[str, list[dict[str, float]]]]  # by prompt tokens and backend


async def hand_overs(plan: Plan, clock: Clock) -> Found:
    """Every length and backend. The backends take turns."""
    rng = random.Random(0)
    memory = ("--max-total-tokens", str(plan.kv_tokens), "--max-running-requests", str(plan.at_once))
    fixed = ("--model", plan.folder, *SERVE, *memory, "--transfer-backend")
    async with baton_sides({name: (*fixed, backend) for name, backend in BACKENDS.items()}, clock) as sides:
        hand_overs: Found = {}
        for num_tokens, repeat in plan.prompts.items():
            hand_overs[num_tokens] = {side.name: [] for side in sides}
            for side, number in turns(sides, repeat, WARM_UPS):
                prompts = [rng.choices(range(plan.vocab_size), k=num_tokens) for _ in range(plan.at_once)]
                seen = await asyncio.gather(*(side.complete(prompt, MAX_TOKENS, timeline=True) for prompt in prompts))
                hand_overs[num_tokens][side.name] += map(handover_of, seen) if number >= 0 else ()
    return hand_overs


def write(sheet: Sheet, by_length: Found) -> None:
    """A line for each length and backend: medians, and the 90th percentiles."""
    for num_tokens, by_backend in by_length.items():
        for name, seen in by_backend.items():
            figures = {figure: [one[figure] for one in seen] for figure in seen[0]}
            kv_bytes = num_tokens * SMALL_MODEL.all_page_bytes // SMALL_MODEL.page_size
            cells: dict[str, Value] = {"tokens": num_tokens, "backend": name, "KV MB": kv_bytes / 1e6}
            cells |= {figure: median(values) for figure, values in figures.items()}
            cells |= {f"{figure}, p90": percentile(figures[figure], 0.9) for figure in ("exposed", "gap")}
            sheet.row("Exposed transfer", cells, ABOUT)
            sheet.goal(f"{num_tokens} tokens, {name}: share of TTFT", median(figures["share"]), "at most", SHARE)


def measure(sheet: Sheet, quick: bool) -> None:
    """Writes the table. `quick` only shows that it works."""
    folder, vocab_size = str(bench_model(max_position_embeddings=CONTEXT_LENGTH)), int(CONFIG["vocab_size"])
    plan = Plan(QUICK_PROMPTS if quick else PROMPTS, folder, vocab_size, 2 * CONTEXT_LENGTH)
    write(sheet, asyncio.run(hand_overs(plan, MonotonicClock())))
