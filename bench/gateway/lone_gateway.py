"""A gateway process alone, and plain HTTP clients that cost little CPU themselves."""

import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from loadtest.drive.server import metrics
from loadtest.http_exchange import Server, exchange
from protocol.errors import ConfigError
from runtime.clock import Clock
from runtime.process_life import LAUNCHER_PID
from runtime.settings import GatewaySettings, HttpLimits

START_S = 60.0


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
    """When one streamed completion was sent, and when each of its events was read, in seconds of one clock."""

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
    sent_at, times, lines = clock.now(), list[float](), list[bytes]()

    def take(now: float, line: bytes) -> bool:
        lines.append(line)
        if line.startswith(b"data: {"):
            times.append(now)
            if len(times) == 1:
                on_first()
        return True

    await exchange(Server.at(url, ""), clock, "POST", "/v1/completions", body, take)
    answer = b"".join(lines)
    if answer.count(b'"index":') != max_tokens or b"data: [DONE]" not in answer:
        raise ConfigError(f"a stream went wrong: {answer[:300]!r}")
    return Streamed(sent_at, times)


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, in steps of nanoseconds; /proc and /metrics count in steps of 10 ms. The
    clock's number follows Linux's clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


def peak_memory_mb(pid: int) -> float:
    """The most resident memory that a process has had, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    [line] = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


async def metrics_of(url: str, clock: Clock) -> dict[str, float]:
    """Every metric by its name without labels: the sum of its samples."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, value in (await metrics(Server.at(url, ""), clock) or {}).items():
        found[name.partition("{")[0]] += value
    return found
