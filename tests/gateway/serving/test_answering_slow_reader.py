"""Clients that stop reading: they are cut off, nothing piles up for them, and nobody else notices."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from protocol.messages_gateway import Role
from runtime.settings import HttpLimits
from testkit.fake_worker import PATIENCE_S, Behaviour, FakeWorker, letters
from tests.gateway.conftest import Setting, running, wait_until
from tests.gateway.folders import byte_tokenizer, write_folder

pytestmark = pytest.mark.slow

STALL_S = 1.0  # who reads is not taken for one who does not, even where this process waits for a core now and then
LONG = 50_000  # tokens: 10 MB of chunks with one each, more than a connection buffers
PATIENT = HttpLimits(slow_reader_timeout_s=600, max_stream_backlog=10**9)


@asynccontextmanager
async def served(folder: Path, limits: HttpLimits, **behaviour: Any) -> AsyncIterator[tuple[Setting, FakeWorker]]:
    """A gateway whose connections buffer little, and a worker that floods it."""
    write_folder(folder, byte_tokenizer(), config={"max_position_embeddings": 10**6})
    async with running(folder, limits=limits) as setting:
        setting.gateway._http_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # connections inherit it
        worker = await setting.add(
            Role.UNIFIED,
            "u",
            behaviour=Behaviour(burst=20, **behaviour),
            context_length=10**6,
            max_total_tokens=10**7,
        )
        yield setting, worker


def stuck_client(url: str, body: dict[str, Any], connection: str = "keep-alive") -> socket.socket:
    """A client that has sent its request and reads nothing."""
    where = urlsplit(url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((where.hostname, where.port))
    raw = json.dumps({"prompt": "x", "max_tokens": LONG, **body}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(raw)}\r\nconnection: {connection}\r\n\r\n"
    )
    client.sendall(head.encode() + raw)
    return client


def rest_of(client: socket.socket) -> bytes:
    """What the connection still holds, until it ends: by a reset, because what waited was dropped."""
    found = b""
    client.settimeout(PATIENCE_S)
    try:
        while part := client.recv(1 << 20):
            found += part
    except ConnectionResetError:
        pass
    return found


async def cut_for(setting: Setting, reason: str) -> bool:
    """Whether exactly one connection was cut, for `reason`."""
    page = (await setting.client.get("/metrics")).text
    lines = {line for line in page.splitlines() if line.startswith("baton_slow_readers_cut_total{")}
    counts = {"stalled": 0.0, "backlog": 0.0} | {reason: 1.0}
    name = "baton_slow_readers_cut_total"
    return lines == {f'{name}{{model_name="story",reason="{each}"}} {count}' for each, count in counts.items()}


@pytest.mark.parametrize(
    "reason, limits",
    [
        ("stalled", HttpLimits(slow_reader_timeout_s=STALL_S, max_stream_backlog=10**9)),
        ("backlog", HttpLimits(slow_reader_timeout_s=600, max_stream_backlog=500)),
    ],
)
async def test_a_stream_that_nobody_reads_is_cut(
    folder: Path, reason: str, limits: HttpLimits, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "baton")
    async with served(folder, limits, pause_s=0.005) as (setting, worker):  # 12 s: it is cut in the middle
        caplog.clear()  # what the start said of the folder
        with stuck_client(setting.gateway.url, {"stream": True}) as client:
            async with asyncio.timeout(PATIENCE_S):
                other = await setting.complete("other", max_tokens=300)  # at the same time
                assert other.json()["usage"]["completion_tokens"] == 300
                await worker.until(lambda: bool(worker.cancelled))
                await wait_until(lambda: len(setting.gateway.control.dispatch.requests) == 0)
            assert await cut_for(setting, reason)
            read = await asyncio.to_thread(rest_of, client)
        assert b"data: " in read and b"[DONE]" not in read
        assert not setting.gateway.control.dispatch.loads
        assert [record.getMessage() for record in caplog.records] == ["slow reader cut"]
        page = (await setting.client.get("/metrics")).text
        assert 'baton_requests_total{model_name="story",outcome="cancelled"} 1.0' in page
        assert (await setting.complete("again", max_tokens=3)).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@pytest.mark.parametrize(
    "num_tokens", [12_000, 30_000]
)  # less, and more, than what a connection buffers before it says so
async def test_a_whole_answer_that_nobody_reads_is_cut(folder: Path, num_tokens: int, connection: str) -> None:
    limits = HttpLimits(slow_reader_timeout_s=STALL_S)
    async with served(folder, limits) as (setting, _):
        body = {"return_token_ids": True, "max_tokens": num_tokens}
        with stuck_client(setting.gateway.url, body, connection) as client:
            async with asyncio.timeout(PATIENCE_S):
                while not await cut_for(setting, "stalled"):  # noqa: ASYNC110  # what is waited for has no event
                    await asyncio.sleep(0.05)
            assert len(await asyncio.to_thread(rest_of, client)) < 60_000
        assert len(setting.gateway.control.dispatch.requests) == 0


async def test_a_client_that_half_closes_has_left(folder: Path) -> None:
    async with served(folder, PATIENT, pause_s=0.001) as (setting, worker):
        with stuck_client(setting.gateway.url, {"stream": True}) as client:
            await worker.until(lambda: bool(worker.assigned))
            client.shutdown(socket.SHUT_WR)
            await worker.until(lambda: bool(worker.cancelled))
        await wait_until(lambda: len(setting.gateway.control.dispatch.requests) == 0)
        assert [each.choice for each in worker.cancelled] == [-1]


async def test_a_client_that_reads_late_but_reads_gets_everything(folder: Path) -> None:
    num_tokens = 3000
    async with served(folder, PATIENT) as (setting, worker):
        with stuck_client(setting.gateway.url, {"stream": True, "max_tokens": num_tokens}) as client:
            # the worker is done long before the client reads: its tokens wait in the backlog
            await wait_until(lambda: bool(worker.assigned) and len(setting.gateway.control.dispatch.requests) == 0)
            reading = asyncio.create_task(asyncio.to_thread(_until_done, client))
            async with asyncio.timeout(PATIENCE_S):
                read = await reading
        [assign] = worker.assigned
        ids = letters(assign, 0)
        assert "".join(_texts(read)) == bytes(ids).decode() and len(ids) == num_tokens
        for reason in ("stalled", "backlog"):
            line = f'baton_slow_readers_cut_total{{model_name="story",reason="{reason}"}} 0.0'
            assert line in (await setting.client.get("/metrics")).text


def _until_done(client: socket.socket) -> bytes:
    found = b""
    while b"data: [DONE]\n\n" not in found[-200:]:
        part = client.recv(65536)
        assert part, found[-200:]
        found += part
    return found


def _texts(raw: bytes) -> list[str]:
    lines = [line for line in raw.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line[6:])["choices"][0]["text"] for line in lines]
