"""A gateway process alone, and what it costs."""

import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from bench.side import Side
from loadtest.drive.server import metrics
from loadtest.http_exchange import Server
from protocol.errors import ConfigError
from runtime.clock import Clock
from runtime.process_life import LAUNCHER_PID
from runtime.settings import GatewaySettings

START_S = 60.0
NAME = "bench"  # of the model


class Running(NamedTuple):
    """A gateway process that is ready."""

    side: Side
    control: str  # the endpoint that workers dial
    pid: int


@asynccontextmanager
async def gateway_process(model: str, clock: Clock, chat_template: str | None = None) -> AsyncIterator[Running]:
    """Starts a gateway process, yields it once it is ready, and stops it. No worker is lost because it is slow."""
    settings = GatewaySettings(
        model=model,
        served_model_name=(NAME,),
        port=0,
        log_level="error",
        silence_limit_s=60.0,
        chat_template=chat_template,
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
        yield Running(Side(NAME, Server.at(url, ""), NAME, clock), control, child.pid)
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


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, in steps of nanoseconds; /proc and /metrics count in steps of 10 ms. The
    clock's number follows Linux's clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


def peak_memory_mb(pid: int) -> float:
    """The most resident memory that a process has had, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    [line] = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


async def metrics_of(side: Side) -> dict[str, float]:
    """Every metric by its name without labels: the sum of its samples."""
    totals: defaultdict[str, float] = defaultdict(float)
    for name, value in (await metrics(side.server, side.clock) or {}).items():
        totals[name.partition("{")[0]] += value
    return totals
