"""An OpenAI server whose next token is a hash of all tokens before it, and a proxy that lies about some answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from loadtest.http_exchange import Server, exchange
from runtime.clock import MonotonicClock
from tests.loadtest.openai_stand_in import STREAM, StandIn, chunked, standing_in

FIRST, VOCAB = 5, 250
FROZEN = b"frozen"
Events = list[dict[str, Any]]
Lie = Callable[[Events], Events]


def tops_after(ids: list[int]) -> dict[int, float]:
    """The likeliest tokens behind `ids`, the likeliest first."""
    best = crc32(bytes(str(ids), "ascii")) % VOCAB
    return {FIRST + (best + rank) % VOCAB: -0.1 - 1.37 * rank for rank in range(5)}


def sampled(body: dict[str, Any], step: int) -> int:
    """The rank of a token: 0 if it is greedy, else one that the seed says."""
    return crc32(bytes(f"{body.get('seed')} {step}", "ascii")) % 5 if body.get("temperature") else 0


def choice_of(body: dict[str, Any], index: int, ids: list[int], step: int) -> dict[str, Any]:
    """The next token as vLLM tells it."""
    tops = tops_after(ids)
    token = list(tops)[sampled(body, step)]
    ids.append(token)
    names = {f"token_id:{top}": value for top, value in tops.items()}
    logprobs = {"tokens": [f"token_id:{token}"], "token_logprobs": [tops[token]], "top_logprobs": [names]}
    finish = "length" if step == body["max_tokens"] - 1 else None
    return {"index": index, "text": f" {token}", "token_ids": [token], "logprobs": logprobs, "finish_reason": finish}


def scores(prompt: list[int]) -> list[Any]:
    """`prompt_logprobs`: a token that nothing explains has -50."""
    scored: list[Any] = [None]
    for index in range(1, len(prompt)):
        tops = tops_after(prompt[:index])
        own = {prompt[index]: tops.get(prompt[index], -50.0)}
        scored.append({str(token): {"logprob": value} for token, value in {**own, next(iter(tops)): -0.1}.items()})
    return scored


def answer(body: dict[str, Any]) -> Sequence[bytes]:
    """The pieces of an answer, streamed or whole."""
    events: Events = []
    whole: list[dict[str, Any]] = []
    for index in range(body.get("n", 1)):
        ids = list(body["prompt"])
        mine = [choice_of(body, index, ids, step) for step in range(body["max_tokens"])]
        events += [{"choices": [choice]} for choice in mine]
        logprobs = {name: [value for part in mine for value in part["logprobs"][name]] for name in mine[0]["logprobs"]}
        tokens = [token for part in mine for token in part["token_ids"]]
        text = "".join(part["text"] for part in mine)
        whole.append({**mine[-1], "text": text, "token_ids": tokens, "logprobs": logprobs})
    num = sum(len(part["token_ids"]) for part in whole)
    prompt = len(body["prompt"])
    usage = {"prompt_tokens": prompt, "completion_tokens": num, "total_tokens": prompt + num}
    if not body.get("stream"):
        if body.get("prompt_logprobs") is not None:
            whole[0]["prompt_logprobs"] = scores(body["prompt"])
        return [json.dumps({"choices": whole, "usage": usage}).encode()]
    told = [*events, {"choices": [], "usage": usage}]
    return [*(b"data: %b\n\n" % json.dumps(event).encode() for event in told), b"data: [DONE]\n\n"]


@asynccontextmanager
async def hashing(change: Callable[[dict[str, Any]], Sequence[bytes]] = answer) -> AsyncIterator[Server]:
    """Where it answers. `change` makes answers in place of `answer`."""
    async with standing_in(StandIn(change)) as server:
        yield server


# ---- lies: what a proxy may do to the events of one stream ----


def repeated(events: Events) -> Events:
    """One event comes twice."""
    middle = len(events) // 2
    return [*events[:middle], events[middle - 1], *events[middle:]]


def cut(events: Events) -> Events:
    """The second half is missing, and the answer says that it is whole."""
    told = [event for event in events if event["choices"]]
    kept = told[: len(told) // 2]
    kept[-1]["choices"][0]["finish_reason"] = "stop"
    return [*kept, *(event for event in events if not event["choices"])]


def miscounted(events: Events) -> Events:
    """Usage tells one token too many."""
    for event in events:
        if event.get("usage"):
            event["usage"]["completion_tokens"] += 1
            event["usage"]["total_tokens"] += 1
    return events


def reordered(events: Events) -> Events:
    """Two events have changed places."""
    middle = len(events) // 2
    return [*events[: middle - 1], events[middle], events[middle - 1], *events[middle + 1 :]]


def damaged(events: Events) -> Events:
    """One token in the middle is another one, which nothing explains."""
    choice = events[len(events) // 2]["choices"][0]
    choice["token_ids"] = [FIRST]
    choice["logprobs"]["tokens"] = [f"token_id:{FIRST}"]
    return events


@dataclass
class LyingProxy:
    """Passes everything on to `upstream`. Behind the first `honest` requests, of `every` streams one is changed by
    `lie`. `swaps`: two change places; `freezes`: it never ends. `told`: how many lies were told."""

    upstream: Server
    lie: Lie | None = None
    swaps: bool = False
    freezes: bool = False
    honest: int = 40
    every: int = 5
    told: int = 0
    num_streams: int = 0
    num_asked: int = 0
    _held: "tuple[Events, asyncio.Future[Events]] | None" = None  # a stream that waits for another one
    serving: set["asyncio.Task[None]"] = field(default_factory=set)
    has_lied: asyncio.Event = field(default_factory=asyncio.Event)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Called by the listener."""
        task = asyncio.create_task(self._serve(reader, writer))
        self.serving.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: "asyncio.Task[None]") -> None:
        self.serving.discard(task)
        self._go_on_alone()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("Content-Length:")), 0)
            body = await reader.readexactly(length)
            method, path, _ = head.split(" ", 2)
            lines: list[bytes] = []

            def keep(_: float, line: bytes) -> bool:
                lines.append(line)
                return True

            status = await exchange(self.upstream, MonotonicClock(), method, path, body, keep)
            asked = json.loads(body or b"{}")
            if asked.get("stream") and status == 200 and asked.get("n", 1) == 1:
                lines = await self._changed(lines)
            self.num_asked += method == "POST"
            is_frozen = lines[-1:] == [FROZEN]
            lines = [line for line in lines if line not in (b"", FROZEN)]
            writer.write(STREAM.replace(b"200", b"%d" % status))
            writer.write(b"".join(chunked(line + b"\n") for line in lines))
            if is_frozen:
                await reader.read()  # until the client leaves
            writer.write(chunked(b""))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _changed(self, lines: list[bytes]) -> list[bytes]:
        self.num_streams += 1
        if self.num_asked < self.honest or self.num_streams % self.every:
            return lines
        events = [json.loads(line[5:]) for line in lines if line.startswith(b"data: {")]
        self.told += 1
        self.has_lied.set()
        if self.freezes:
            return [*lines[: len(lines) // 2], FROZEN]
        events = await self._swapped(events) if self.swaps else (self.lie or repeated)(events)
        return [*(b"data: %b" % json.dumps(event).encode() for event in events), b"data: [DONE]"]

    async def _swapped(self, events: Events) -> Events:
        """The events of another stream that comes to this point, for these."""
        if self._held is None:
            waiting: asyncio.Future[Events] = asyncio.get_running_loop().create_future()
            self._held = (events, waiting)
            self._go_on_alone()
            return await waiting
        (others, waiting), self._held = self._held, None
        self.told -= 2 * (others == events)  # answers to the same request
        waiting.set_result(events)
        return others

    def _go_on_alone(self) -> None:
        """Ends the wait of a stream beside which no other is served."""
        if self._held is not None and len(self.serving) <= 1:
            (events, waiting), self._held = self._held, None
            self.told -= 1
            waiting.set_result(events)


@asynccontextmanager
async def lying(proxy: LyingProxy) -> AsyncIterator[Server]:
    """Where it answers."""
    listener = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    try:
        yield Server("127.0.0.1", listener.sockets[0].getsockname()[1])
    finally:
        listener.close()
        left = [*proxy.serving]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # transports close a turn later
