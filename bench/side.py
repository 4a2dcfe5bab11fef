"""One server that is measured: completions with what they say of themselves, and what its workers count."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from loadtest.deployment import deployed
from loadtest.drive.server import find_model, metrics
from loadtest.http_exchange import Server, exchange, get, refusal
from runtime.clock import Clock

T = TypeVar("T")
_LOOK_S = 0.05


@dataclass(frozen=True)
class Answer:
    """One streamed answer. `arrivals` are seconds since the request was sent."""

    sent_at: float
    arrivals: tuple[float, ...]
    num_prompt: int
    num_cached: int
    num_tokens: int
    moments: Mapping[str, float]  # of its time line, in milliseconds, if it was asked for
    deltas: Sequence[Mapping[str, Any]] = ()  # of a chat: what each piece adds to its message

    @property
    def num_computed(self) -> int:
        """Prompt tokens that were computed."""
        return self.num_prompt - self.num_cached


@dataclass(frozen=True)
class Side:
    """A running server under the name that tables give it. A request that fails is a RuntimeError."""

    name: str
    server: Server
    model: str
    clock: Clock

    async def complete(
        self, prompt: Sequence[int], max_tokens: int, on_first: Callable[[], None] = lambda: None, **fields: Any
    ) -> Answer:
        """A completion of token ids: greedy and of exactly `max_tokens` tokens, unless `fields` say otherwise. Calls
        `on_first` when its answer begins."""
        return await self._ask("/v1/completions", max_tokens, on_first, prompt=prompt, **fields)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int,
        on_first: Callable[[], None] = lambda: None,
        **fields: Any,
    ) -> Answer:
        """A chat in the same way."""
        return await self._ask("/v1/chat/completions", max_tokens, on_first, messages=messages, **fields)

    async def _ask(self, path: str, max_tokens: int, on_first: Callable[[], None], **fields: Any) -> Answer:
        """Lines are read when all have come, so that it costs little meanwhile."""
        asked = {"model": self.model, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        asked |= {"stream": True, "stream_options": {"include_usage": True}, **fields}
        lines: list[tuple[float, bytes]] = []

        def keep(now: float, line: bytes) -> bool:
            if not lines:
                on_first()
            lines.append((now, line))
            return line != b"data: [DONE]"

        sent_at = self.clock.now()
        status = await exchange(self.server, self.clock, "POST", path, orjson.dumps(asked), keep)
        if status != 200:
            raise RuntimeError(f"{self.name}: {refusal(status, b' '.join(line for _, line in lines))}")
        return answer_of(sent_at, lines)

    async def total(self, metric: str, **labels: str) -> float:
        """The sum of all samples of `metric` with these labels, once everything is counted."""
        await self._settled()
        page = await metrics(self.server, self.clock) or {}
        wanted = (metric + "{", *(f'{name}="{value}"' for name, value in labels.items()))
        return sum(value for sample, value in page.items() if all(word in sample for word in wanted))

    async def _settled(self) -> None:
        """Waits until each worker has told, after this call, what it has counted. A busy machine's heartbeats come
        late."""
        called = self.clock.now()
        while True:
            asked = self.clock.now()  # the answer's ages are counted from a later moment
            _, rows = await get(self.server, self.clock, "/workers")
            if all(asked - row["heartbeat_age_s"] > called for row in orjson.loads(rows)):
                return
            await asyncio.sleep(_LOOK_S)

    async def bytes_moved(self) -> float:
        """KV bytes that have landed at decode workers so far."""
        return await self.total("baton_kv_transfer_bytes_total", role="decode")


def answer_of(sent_at: float, lines: Sequence[tuple[float, bytes]]) -> Answer:
    """Reads the lines of a stream, each with its arrival. RuntimeError when it did not end as it should."""
    arrivals: list[float] = []
    usage: dict[str, Any] = {}
    moments: dict[str, float] = {}
    deltas: list[Mapping[str, Any]] = []
    for now, line in lines:
        if not line.startswith(b"data: {"):
            continue
        event = orjson.loads(line[6:])
        if "error" in event:
            raise RuntimeError(f"a stream ended with {event['error']}")
        usage = event.get("usage") or usage
        moments |= {moment["name"]: moment["at_ms"] for moment in event.get("timeline") or ()}
        for choice in event["choices"]:
            deltas += [choice["delta"]] if "delta" in choice else []
            new = choice.get("token_ids")
            if new is None or new:  # without ids, each chunk counts
                arrivals.append(now - sent_at)

    if not arrivals or not usage or lines[-1][1] != b"data: [DONE]":
        raise RuntimeError(f"a stream ended early, after {len(lines)} lines")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    counts = (usage["prompt_tokens"], cached, usage["completion_tokens"])
    return Answer(sent_at, tuple(arrivals), *counts, moments, deltas)


@asynccontextmanager
async def baton_sides(arguments: Mapping[str, Sequence[str]], clock: Clock) -> AsyncIterator[list[Side]]:
    """Deployments of Baton by name, all running at once: one is loaded at a time, and an idle one costs nothing."""
    async with AsyncExitStack() as stack:
        sides = []
        for name, own in arguments.items():
            server = Server.at(await stack.enter_async_context(deployed(own)), "")
            sides.append(Side(name, server, (await find_model(server, clock, None)).model, clock))
        yield sides


async def run_jobs(jobs: Sequence[Callable[[], Awaitable[T]]], at_a_time: int) -> list[T]:
    """Runs `jobs` in order, `at_a_time` of them at once. Results in the order of `jobs`."""
    run_jobs: dict[int, T] = {}
    waiting = iter(enumerate(jobs))

    async def one_client() -> None:
        for index, job in waiting:
            run_jobs[index] = await job()

    async with asyncio.TaskGroup() as group:
        for _ in range(at_a_time):
            group.create_task(one_client())
    return [run_jobs[index] for index in range(len(jobs))]
