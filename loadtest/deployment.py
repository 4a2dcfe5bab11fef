"""A deployment for the length of a measurement: `baton serve` as a child process, on a port the system chooses.

What it does not know: what is measured.
"""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from protocol.errors import ConfigError

SERVE = (sys.executable, "-m", "deploy", "serve", "--port", "0")
START_S = 180.0
STOP_S = 20.0
_READY = re.compile(rb"^Ready: .* at (http://\S+)")  # earlier lines name the URL too, before any worker serves


@asynccontextmanager
async def deployed(arguments: Sequence[str], command: Sequence[str] = SERVE) -> AsyncIterator[str]:
    """The base URL of `command` with `arguments` once every worker serves, ended afterwards. ConfigError with its words
    when it does not come up in time."""
    child = await asyncio.create_subprocess_exec(
        *command, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert child.stdout is not None
    drain: asyncio.Task[bytes] | None = None
    try:
        url = await _ready_url(child.stdout)
        drain = asyncio.create_task(child.stdout.read())
        yield url
    finally:
        await _stop(child)
        if drain is not None:
            await drain


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
