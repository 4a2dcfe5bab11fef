"""Runs `baton serve` as a child process during a measurement, on a port that the system chooses."""

import asyncio
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loadtest.tied import tied
from protocol.errors import ConfigError

UNIFIED = ("--prefill", "0", "--decode", "0", "--unified", "1")
PAIR = ("--prefill", "1", "--decode", "1", "--unified", "0")
SERVE = (sys.executable, "-m", "deploy", "serve", "--port", "0")
START_S = 180.0
STOP_S = 20.0
_TAIL_LINES = 400
_READ_BYTES = 65536
_READY = re.compile(rb"^Ready: .* at (http://\S+)")  # the URL also appears earlier, before any worker serves


@dataclass(frozen=True)
class Deployment:
    """A running deployment: its URL, the launcher's process id, and its last lines of output."""

    url: str
    pid: int
    said: deque[bytes]


@asynccontextmanager
async def deployed(arguments: Sequence[str], command: Sequence[str] = SERVE) -> AsyncIterator[str]:
    """Starts `command` with `arguments`, yields its base URL once every worker serves, and stops it. ConfigError with
    its output if it does not start in time."""
    async with deployment(arguments, command) as running:
        yield running.url


@asynccontextmanager
async def deployment(
    arguments: Sequence[str], command: Sequence[str] = SERVE, num_lines: int = _TAIL_LINES
) -> AsyncIterator[Deployment]:
    """Like `deployed`, with the process and the last `num_lines` of its output."""
    child = await asyncio.create_subprocess_exec(
        *tied((*command, *arguments)), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert child.stdout is not None
    drain: asyncio.Task[None] | None = None
    try:
        running = Deployment(await _ready_url(child.stdout), child.pid, deque(maxlen=num_lines))
        drain = asyncio.create_task(_drain(child.stdout, running.said))
        yield running
    finally:
        await _stop(child)
        if drain is not None:
            await drain


async def _drain(output: asyncio.StreamReader, said: deque[bytes]) -> None:
    """Reads the output so that the pipe never fills. Keeps a part of a line that is too long."""
    rest = b""
    while piece := await output.read(_READ_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        said.extend(lines)
        rest = rest[-_READ_BYTES:]


async def _ready_url(output: asyncio.StreamReader) -> str:
    """Reads lines until the ready line; returns its URL."""
    said: list[bytes] = []
    try:
        async with asyncio.timeout(START_S):
            while line := await output.readline():
                said.append(line)
                if match := _READY.search(line):
                    return match[1].decode()
        reason = "did not start"
    except TimeoutError:
        reason = f"was not ready within {START_S:g} s"
    raise ConfigError(f"baton serve {reason}:\n" + b"".join(said[-20:]).decode(errors="replace"))


async def _stop(child: asyncio.subprocess.Process) -> None:
    """Sends Ctrl-C, then SIGKILL if the launcher does not end in time. Its children die with it."""
    if child.returncode is not None:
        return
    child.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(STOP_S):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
