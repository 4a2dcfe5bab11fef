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

START_S = 180.0
STOP_S = 20.0
_URL = re.compile(rb"(http://[0-9.]+:\d+)")


@asynccontextmanager
async def deployed(arguments: Sequence[str]) -> AsyncIterator[str]:
    """The base URL of `baton serve` with `arguments`, ended afterwards. ConfigError with its words when it fails."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "deploy", "serve", "--port", "0", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=None,
    )
    assert child.stdout is not None
    said: list[bytes] = []
    drain: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(START_S):
            while line := await child.stdout.readline():
                said.append(line)
                if found := _URL.search(line):
                    drain = asyncio.create_task(child.stdout.read())
                    yield found[1].decode()
                    return
        raise ConfigError("baton serve did not start:\n" + b"".join(said[-20:]).decode(errors="replace"))
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGINT)
            async with asyncio.timeout(STOP_S):
                await child.wait()
        if drain is not None:
            await drain
