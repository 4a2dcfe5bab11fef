"""Traffic through real processes: the model whose next token is a hash of the KV present, and clients that leave."""

import asyncio
import contextlib
import json
import random
import socket
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import PATIENCE_S, BatonProcess, read_event

pytestmark = pytest.mark.slow
RUNNER = FakeRunner()
NUM_CLIENTS = 48


@dataclass
class Counts:
    """What became of the requests."""

    whole: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Visit:
    """One request; the client leaves after `leaves_after` chunks (streamed) or so many hundredths of a second."""

    prompt: list[int]
    max_tokens: int
    n: int
    stream: bool
    leaves_after: int | None

    @property
    def body(self) -> dict[str, Any]:
        """The request's JSON."""
        wanted = {"max_tokens": self.max_tokens, "n": self.n, "stream": self.stream}
        return {"prompt": self.prompt, "temperature": 0, "return_token_ids": True, "user": "traffic", **wanted}


def draw_visit(rng: random.Random) -> Visit:
    prompt = [rng.randrange(RUNNER.vocab_size) for _ in range(rng.choice((1, 4, rng.randint(1, 150))))]
    leaves_after = rng.choice((0, 1, rng.randint(0, 30))) if rng.random() < 0.35 else None
    return Visit(
        prompt, rng.choice((1, 2, rng.randint(1, 60))), rng.choice((1, 1, 2, 3)), rng.random() < 0.7, leaves_after
    )


async def visit(http: httpx.AsyncClient, it: Visit, counts: Counts) -> None:
    """Plays one client and checks what it got."""
    tokens: list[list[int]] = [[] for _ in range(it.n)]
    finishes: list[list[str]] = [[] for _ in range(it.n)]
    if it.stream:
        stayed = await _stream(http, it, tokens, finishes)
    else:
        stayed = await _whole(http, it, tokens, finishes)
    expected = RUNNER.expected_tokens(it.prompt, it.max_tokens)
    if stayed:
        right = all(each == expected for each in tokens) and all(each == ["length"] for each in finishes)
        counts.whole += 1
    else:
        right = all(each == expected[: len(each)] for each in tokens)
        counts.left += 1
    if not right:
        counts.wrong.append(f"{it}: {tokens} {finishes}, expected {expected}")


async def _stream(http: httpx.AsyncClient, it: Visit, tokens: list[list[int]], finishes: list[list[str]]) -> bool:
    num_chunks = 0
    async with http.stream("POST", "/v1/completions", json=it.body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if num_chunks == it.leaves_after:
                return False
            if line:
                event = read_event(line)
                if "done" in event:
                    return True
                num_chunks += 1
                _take(event["choices"], tokens, finishes)
    raise AssertionError("the stream ended without [DONE]")


async def _whole(http: httpx.AsyncClient, it: Visit, tokens: list[list[int]], finishes: list[list[str]]) -> bool:
    timeout = None if it.leaves_after is None else 0.01 * it.leaves_after
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            response = await http.post("/v1/completions", json=it.body)
            assert response.status_code == 200, response.text
            _take(response.json()["choices"], tokens, finishes)
            return True
    return False


def _take(choices: list[dict[str, Any]], tokens: list[list[int]], finishes: list[list[str]]) -> None:
    for choice in choices:
        tokens[choice["index"]] += choice["token_ids"]
        if choice["finish_reason"] is not None:
            finishes[choice["index"]].append(choice["finish_reason"])


async def play(url: str, visits: list[Visit]) -> Counts:
    """NUM_CLIENTS clients take the visits in turn."""
    counts = Counts()
    coming = iter(visits)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as http, asyncio.TaskGroup() as group:

        async def client() -> None:
            for it in coming:
                await visit(http, it, counts)

        for _ in range(NUM_CLIENTS):
            group.create_task(client())
    return counts


def test_five_hundred_requests_with_disconnects(fake: BatonProcess) -> None:
    rng = random.Random(2024)
    counts = asyncio.run(play(fake.url, [draw_visit(rng) for _ in range(500)]))
    assert counts.wrong == []
    assert counts.whole + counts.left == 500
    assert counts.left > 50
    assert fake.wait_for_rest(), fake.workers()
    assert {worker["kv_pages"]["total"] for worker in fake.workers()} == {300}


LONG = {"prompt": [1, 2, 3] * 100, "max_tokens": 800, "temperature": 0}


@pytest.mark.parametrize("num_chunks", [1, 5])
def test_a_client_that_leaves_its_stream_frees_everything_on_both_sides(fake: BatonProcess, num_chunks: int) -> None:
    chunks = fake.stream(**LONG)
    for _ in range(num_chunks):
        next(chunks)
    assert fake.wait_for_work()
    chunks.close()
    assert fake.wait_for_rest(), fake.workers()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_never_listens_frees_everything_on_both_sides(fake: BatonProcess, stream: bool) -> None:
    """It sends its request and waits for nothing: not for the head of a stream, not for the whole answer."""
    body = json.dumps({**LONG, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: baton\r\nContent-Length: {len(body)}\r\n\r\n"
    where = urlsplit(fake.url)
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(head.encode() + body)
        assert fake.wait_for_work()
    assert fake.wait_for_rest(), fake.workers()


def test_a_cancelled_request_makes_room(fake: BatonProcess) -> None:
    """Requests that fill the pools leave; one that needs the room then runs, and is right."""
    streams = [fake.stream(prompt=[index] * 100, max_tokens=1000, temperature=0) for index in range(6)]
    for stream in streams[:2]:
        next(stream)
    for stream in streams:
        stream.close()
    prompt = list(range(600))
    assert fake.tokens(prompt, max_tokens=500, temperature=0) == RUNNER.expected_tokens(prompt, 500)
    assert fake.wait_for_rest(), fake.workers()
