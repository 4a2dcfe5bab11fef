"""One load on one server: how many requests, how large, how many at a time, and what disturbs them.

    closed loop   `concurrency` clients; each sends its next request when its last one has ended
    open loop     requests arrive on their own, `rate` a second on average, however many still run
    intruders     long prompts beside either, `intruder_rate` a second, one output token each, counted separately

`run_load` warms the server up and measures one round.
"""

import asyncio
import random
import resource
from collections.abc import Iterator
from dataclasses import dataclass, replace

from loadtest.client import Timing, completion_body, model_name, stream_one
from loadtest.http_exchange import Server
from loadtest.report import Figures, figures
from runtime.clock import Clock

DRAIN_S = 15.0
ROUND_S = 240.0  # limit of a closed loop; a request without an answer by then has failed
_FIRST_ID = 3  # smaller ids are special in many vocabularies


@dataclass(frozen=True)
class Load:
    """The requests of a round. `vocab` bounds the random prompt ids. Rates are per second; 0 is none."""

    num_requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    vocab: int
    seed: int
    rate: float = 0.0
    intruder_rate: float = 0.0
    intruder_tokens: int = 1500

    def words(self) -> str:
        """The load in one line."""
        how = f"{self.rate:g} a second" if self.rate else f"{self.concurrency} at a time"
        beside = (
            f", a prompt of {self.intruder_tokens:,} every {1 / self.intruder_rate:g} s" if self.intruder_rate else ""
        )
        return f"{self.num_requests} requests, {how}, {self.prompt_tokens} tokens in, {self.output_tokens} out{beside}"


def warm_up(load: Load) -> Load:
    """One request per client, of the same shape with other prompts, so that the server meets every batch and length."""
    return replace(
        load,
        num_requests=min(load.num_requests, load.concurrency),
        rate=0.0,
        intruder_rate=0.0,
        seed=load.seed ^ 0x5EED,
    )


def prompts(seed: int, num_tokens: int, vocab: int) -> Iterator[list[int]]:
    """Endless random prompts, the same for the same seed. No two share a beginning, so no prefix is cached."""
    rng = random.Random(f"{seed}/{num_tokens}")
    while True:
        yield rng.choices(range(min(_FIRST_ID, vocab - 1), vocab), k=num_tokens)


def arrivals(load: Load) -> list[float]:
    """When the requests of an open loop arrive, in seconds from the start (a Poisson process)."""
    rng = random.Random(load.seed)
    moments, at = [], 0.0
    for _ in range(load.num_requests):
        moments.append(at)
        at += rng.expovariate(load.rate)
    return moments


async def run_load(server: Server, clock: Clock, load: Load, model: str | None = None) -> Figures:
    """Warms the server up, then measures one round. `model` defaults to the first one that the server lists."""
    model = model or await model_name(server, clock)
    await _Round(server, clock, model, warm_up(load)).run()
    if load.intruder_rate:
        prompt = next(prompts(warm_up(load).seed, load.intruder_tokens, load.vocab))
        await stream_one(server, clock, completion_body(model, prompt, 1))
    measured = _Round(server, clock, model, load)
    cpu_before, start = _cpu_s(), clock.now()
    timings, end = await measured.run()
    return figures(timings, end - start, measured.intruders, _cpu_s() - cpu_before)


class _Round:
    """The requests of one load. Their bodies are made before the clock runs."""

    def __init__(self, server: Server, clock: Clock, model: str, load: Load) -> None:
        self._server = server
        self._clock = clock
        self._load = load
        own = prompts(load.seed, load.prompt_tokens, load.vocab)
        self._bodies = [completion_body(model, next(own), load.output_tokens) for _ in range(load.num_requests)]
        others = prompts(load.seed, load.intruder_tokens, load.vocab)
        self._intruding = (completion_body(model, prompt, 1) for prompt in others)
        self._end = 0.0
        self.intruders: list[Timing] = []

    async def run(self) -> tuple[list[Timing], float]:
        """Every answer, and when the last one had arrived. Intruders get DRAIN_S more to end."""
        self._end = self._clock.now() + ROUND_S
        async with asyncio.TaskGroup() as group:
            disturbing = group.create_task(self._intrude()) if self._load.intruder_rate else None
            timings = await (self._open() if self._load.rate else self._closed())
            end = self._clock.now()
            if disturbing is not None:
                disturbing.cancel()
        return timings, end

    async def _closed(self) -> list[Timing]:
        waiting = iter(self._bodies)

        async def one_client() -> list[Timing]:
            return [await self._within_limit(body) for body in waiting]

        found = await asyncio.gather(*(one_client() for _ in range(self._load.concurrency)))
        return [timing for of_client in found for timing in of_client]

    async def _within_limit(self, body: bytes) -> Timing:
        """One request of a closed loop, ended when the round's time is over."""
        left_s = max(0.001, self._end - self._clock.now())
        return await stream_one(self._server, self._clock, body, timeout_s=left_s)

    async def _open(self) -> list[Timing]:
        start = self._clock.now()

        async def one_arrival(at_s: float, body: bytes) -> Timing:
            await asyncio.sleep(start + at_s - self._clock.now())
            return await stream_one(self._server, self._clock, body, start + at_s)

        return await asyncio.gather(*map(one_arrival, arrivals(self._load), self._bodies))

    async def _intrude(self) -> None:
        """Sends long prompts at their rate, however late the earlier ones are. Ends when it is cancelled."""
        running: list[tuple[float, asyncio.Task[Timing]]] = []
        due = self._clock.now()
        try:
            for body in self._intruding:
                due += 1 / self._load.intruder_rate
                await asyncio.sleep(due - self._clock.now())
                sent = asyncio.create_task(stream_one(self._server, self._clock, body))
                running.append((self._clock.now(), sent))
        finally:
            if running:
                await asyncio.wait([sent for _, sent in running], timeout=DRAIN_S)
            self.intruders = [self._so_far(start, sent) for start, sent in running]

    def _so_far(self, start: float, sent: asyncio.Task[Timing]) -> Timing:
        """One intruder's answer. Without a first token it has waited until now, so that slow ones are included."""
        if sent.done():
            return sent.result()
        sent.cancel()
        waited_s = self._clock.now() - start
        return Timing(ttft_s=waited_s, e2e_s=waited_s)


def _cpu_s() -> float:
    """CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
