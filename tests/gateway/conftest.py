"""A real gateway on a free port, with fake workers that dial it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from gateway.process import Gateway
from protocol.messages_gateway import Role
from protocol.messages_group import GroupPlace
from runtime.clock import MonotonicClock
from runtime.settings import GatewaySettings
from testkit.fake_worker import PATIENCE_S, Behaviour, FakeWorker
from tests.gateway.folders import byte_tokenizer, write_folder

LOOK_S = 0.02  # between two looks for workers that are lost: a test that loses some waits for them


class Setting:
    """A gateway, its workers, and a client for it."""

    def __init__(self, gateway: Gateway, client: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self.client = client
        self.workers: list[FakeWorker] = []

    async def add(self, role: Role, worker_id: str | None = None, **options: Any) -> FakeWorker:
        """One more worker, welcomed."""
        name = worker_id or f"{role}-{len(self.workers)}"
        worker = FakeWorker(role, self.gateway.control_endpoint, name, **options)
        self.workers.append(worker)
        return await worker.start()

    async def add_group(self, role: Role, name: str, size: int, epoch: int = 1, **options: Any) -> list[FakeWorker]:
        """A group of ranks, all welcomed."""
        places = [GroupPlace(name, epoch, rank, size) for rank in range(size)]
        return await asyncio.gather(
            *(self.add(role, f"{name}.{place.rank}", place=place, **options) for place in places)
        )

    async def add_pair(self, behaviour: Behaviour | None = None, **options: Any) -> FakeWorker:
        """A prefill and a decode worker; the decode worker."""
        prefill = await self.add(Role.PREFILL)
        return await self.add(Role.DECODE, behaviour=behaviour or Behaviour(), prefill=prefill, **options)

    async def metrics(self) -> list[str]:
        """The lines of /metrics."""
        return (await self.client.get("/metrics")).text.splitlines()

    async def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        """POST /v1/completions."""
        return await self.client.post("/v1/completions", json={"prompt": prompt, **fields})


async def connect(setting: Setting) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the gateway, without a client of HTTP."""
    host, port = setting.gateway.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port), limit=2**26)


async def exchange(setting: Setting, *parts: bytes) -> bytes:
    """What the gateway answers to these bytes, until it closes."""
    reader, writer = await connect(setting)
    answer = b""
    try:
        for part in parts:
            writer.write(part)
            with suppress(ConnectionError):  # the gateway has heard enough; what it said is still to be read
                await writer.drain()
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionResetError):
                while received := await reader.read(65536):
                    answer += received
    finally:
        writer.close()
    return answer


async def wait_until(happened: Callable[[], bool]) -> None:
    """Lets the loop turn until `happened()`."""
    async with asyncio.timeout(PATIENCE_S):
        while not happened():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[Setting]:
    """A gateway that serves `folder` as "story"."""
    wanted: dict[str, Any] = {"port": 0, "model": str(folder), "served_model_name": ("story",)}
    wanted |= {"silence_limit_s": 600, **options}  # a busy machine's heartbeats come late
    settings = GatewaySettings(**wanted)
    gateway = Gateway(settings, MonotonicClock())
    workers: list[FakeWorker] = []
    with patch("gateway.routing.punctuality.TICK_S", LOOK_S):
        serving = asyncio.create_task(gateway.serve())
        try:
            async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S, verify=False) as client:
                setting = Setting(gateway, client)
                workers = setting.workers
                yield setting
        finally:
            for worker in workers:
                await worker.stop()
            gateway.stop()
            await serving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the byte-level tokenizer."""
    return write_folder(tmp_path / "story", byte_tokenizer())


@pytest.fixture
async def setting(folder: Path) -> AsyncIterator[Setting]:
    """A gateway without workers yet."""
    async with running(folder) as found:
        yield found


def events(content: str) -> list[Any]:
    """The events of a stream, DONE as None."""
    lines = content.split("\n\n")
    assert lines[-1] == "" and all(line.startswith("data: ") for line in lines[:-1])
    return [None if line == "data: [DONE]" else json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def chunks_of(body: str) -> list[dict[str, Any]]:
    """The JSON of each event but [DONE]."""
    events = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    return [json.loads(event) for event in events if event != "[DONE]"]


def choices_of(body: str) -> dict[int, list[tuple[str, str | None, tuple[int, ...]]]]:
    """By choice: (text, finish reason, token ids) of every chunk."""
    found: dict[int, list[tuple[str, str | None, tuple[int, ...]]]] = {}
    for chunk in chunks_of(body):
        for choice in chunk["choices"]:
            ids = tuple(choice.get("token_ids") or ())
            found.setdefault(choice["index"], []).append((choice["text"], choice["finish_reason"], ids))
    return found
