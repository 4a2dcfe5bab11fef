"""A deployment for the length of a measurement: `baton serve` as a child process, on a port the system chooses.

What it does not know: what is measured.
"""

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

SERVE = (sys.executable, "-m", "deploy", "serve", "--port", "0")
START_S = 180.0
STOP_S = 20.0
_TAIL_LINES = 400
_READ_BYTES = 65536
_READY = re.compile(rb"^Ready: .* at (http://\S+)")  # earlier lines name the URL too, before any worker serves


@dataclass(frozen=True)
class Deployment:
    """What runs: where it answers, the launcher's process, and the last lines that it said."""

    url: str
    pid: int
    said: deque[bytes]


@asynccontextmanager
async def deployed(arguments: Sequence[str], command: Sequence[str] = SERVE) -> AsyncIterator[str]:
    """The base URL of `command` with `arguments` once every worker serves, ended afterwards. ConfigError with its words
    when it does not come up in time."""
    async with deployment(arguments, command) as running:
        yield running.url


@asynccontextmanager
async def deployment(arguments: Sequence[str], command: Sequence[str] = SERVE) -> AsyncIterator[Deployment]:
    """The same for those who want to know more of it."""
    child = await asyncio.create_subprocess_exec(
        *tied((*command, *arguments)), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert child.stdout is not None
    drain: asyncio.Task[None] | None = None
    try:
        running = Deployment(await _ready_url(child.stdout), child.pid, deque(maxlen=_TAIL_LINES))
        drain = asyncio.create_task(_drain(child.stdout, running.said))
        yield running
    finally:
        await _stop(child)
        if drain is not None:
            await drain


async def _drain(output: asyncio.StreamReader, said: deque[bytes]) -> None:
    """Reads what nobody waits for, so that the pipe never fills; of a line that is too long, a part."""
    rest = b""
    while piece := await output.read(_READ_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        said.extend(lines)
        rest = rest[-_READ_BYTES:]


async def _ready_url(output: asyncio.StreamReader) -> str:
    """The URL in the ready line."""
    said: list[bytes] = []
    try:
        async with asyncio.timeout(START_S):
            while line := await output.readline():
                said.append(line)
                if found := _READY.search(line):
                    return found[1].decode()
        why = "did not start"
    except TimeoutError:
        why = f"was not ready within {START_S:g} s"
    raise ConfigError(f"baton serve {why}:\n" + b"".join(said[-20:]).decode(errors="replace"))


async def _stop(child: asyncio.subprocess.Process) -> None:
    """Ctrl-C; SIGKILL for one that does not obey (its own children die with it)."""
    if child.returncode is not None:
        return
    child.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(STOP_S):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
