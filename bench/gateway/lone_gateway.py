"""A gateway process alone, and plain HTTP clients that cost little CPU themselves."""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from protocol.errors import ConfigError
from runtime.clock import Clock
from runtime.process_life import LAUNCHER_PID
from runtime.settings import GatewaySettings, HttpLimits

START_S = 60.0
MODEL_LABEL = re.compile(r',model_name="[^"]*"|model_name="[^"]*",?')


class Running(NamedTuple):
    """A gateway process that is ready."""

    url: str
    control: str  # the endpoint that workers dial
    pid: int


@asynccontextmanager
async def gateway_process(model: str, limits: HttpLimits | None = None) -> AsyncIterator[Running]:
    """Starts a gateway process, yields it once it is ready, and stops it. No worker is lost because it is slow."""
    settings = GatewaySettings(
        model=model,
        served_model_name=("bench",),
        port=0,
        limits=limits or HttpLimits(),
        log_level="error",
        silence_limit_s=60.0,
    )

    read_fd, write_fd = os.pipe()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "gateway", "--settings", settings.to_json(), "--status-fd", str(write_fd)),
        pass_fds=(write_fd,),
        env={**os.environ, LAUNCHER_PID: str(os.getpid())},  # the gateway dies with this process
    )

    os.close(write_fd)
    try:
        async with asyncio.timeout(START_S):
            url, control = await _ready(read_fd)
        yield Running(url, control, child.pid)
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


async def _ready(read_fd: int) -> tuple[str, str]:
    reader = asyncio.StreamReader()
    with os.fdopen(read_fd, "rb") as pipe:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await reader.readline():
                event = json.loads(line)
                if event["event"] == "ready":
                    return event["http"], event["control"]
        finally:
            transport.close()
    raise ConfigError("the gateway did not start; its log says why")


class Streamed(NamedTuple):
    """When one streamed completion was sent, and when each read brought tokens, in seconds of one clock."""

    sent_at: float
    token_times: list[float]


async def stream(
    url: str,
    clock: Clock,
    prompt: Sequence[int],
    max_tokens: int,
    on_first: Callable[[], None] = lambda: None,
) -> Streamed:
    """One streamed completion on its own connection. Calls `on_first` at its first token. ConfigError unless it has all
    its tokens."""
    body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}).encode()
    sent_at, times, parts = clock.now(), list[float](), list[bytes]()
    async for part in post(url, body):
        parts.append(part)
        if b"data: " in part:
            times.append(clock.now())
            if len(times) == 1:
                on_first()

    answer = b"".join(parts)
    if answer.count(b'"index":') != max_tokens or b"data: [DONE]" not in answer:
        raise ConfigError(f"a stream went wrong: {answer[:300]!r}")
    return Streamed(sent_at, times)


async def complete(url: str, body: bytes) -> tuple[int, Any]:
    """Status and JSON of one completion that is not streamed."""
    answer = b"".join([part async for part in post(url, body)])
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), json.loads(content)


async def post(url: str, body: bytes, path: str = "/v1/completions") -> AsyncIterator[bytes]:
    """The gateway's answer, part by part."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    while part := await reader.read(1 << 16):
        yield part
    writer.close()


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, in steps of nanoseconds; /proc and /metrics count in steps of 10 ms. The
    clock's number follows Linux's clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


def peak_memory_mb(pid: int) -> float:
    """The most resident memory that a process has had, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    [line] = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


async def metrics_of(url: str) -> dict[str, float]:
    """Every number of /metrics by its name and labels, without the model's label."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        text = await response.text()
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {MODEL_LABEL.sub("", name).replace("{}", ""): float(value) for name, value in lines}
