"""The server that Baton is compared with: vLLM, in a session of its own that is ended afterwards."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import psutil

from loadtest.http_exchange import Broken, Server, get
from loadtest.ports import held_port
from loadtest.tied import tied
from protocol.errors import ConfigError
from runtime.clock import Clock

VARIABLE = "BATON_PEER_VLLM"
ABSENT = f"no peer: {VARIABLE} is not set. Give it the path of a vllm executable (CPU build) to compare with"
START_S = 300.0
STOP_S = 20.0
KILL_S = 10.0
_LOOK_S = 0.25
_LOG_LINES = 25
_KV_GIB = {"VLLM_CPU_KVCACHE_SPACE": "1"}


class Peer:
    """A running peer. All its processes are in the session that it was started in."""

    def __init__(self, child: asyncio.subprocess.Process, server: Server) -> None:
        self.server = server
        self._child = child

    def processes(self) -> list[psutil.Process]:
        """Its processes that still run, whatever their parent is now."""
        return session_members(self._child.pid)

    async def stop(self) -> None:
        """Sends SIGTERM and, after a grace period, SIGKILL. RuntimeError if a process is left."""
        for number, grace_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, KILL_S)):
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            for _ in range(int(grace_s / _LOOK_S) + 1):
                if not self.processes():
                    await self._child.wait()
                    return
                await asyncio.sleep(_LOOK_S)
        raise RuntimeError(f"the peer left processes behind: {self.processes()}")


def session_members(session: int) -> list[psutil.Process]:
    """The processes of a session that still run. Zombies do not count."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):  # it has ended meanwhile
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def peer_executable(environment: Mapping[str, str]) -> str | None:
    """The peer's path, or None if the variable is not set. ConfigError if it is not executable."""
    given = environment.get(VARIABLE, "")
    if given and shutil.which(given) is None:
        raise ConfigError(f"{VARIABLE}: got {given!r}, expected an executable file")
    return given or None


def vllm_command(executable: str, model: Path, port: int, more: Sequence[str] = ()) -> tuple[str, ...]:
    """vLLM's command line: its defaults, the context length that the load needs, and `more` of its flags."""
    fixed = ("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "4096")
    return (executable, "serve", str(model), *fixed, *more)


@asynccontextmanager
async def peer_running(clock: Clock, executable: str, model: Path, more: Sequence[str] = ()) -> AsyncIterator[Peer]:
    """Starts vLLM with `more` flags, yields it once it is healthy, and stops it."""
    with held_port() as port:
        command = vllm_command(executable, model, port, more)
        async with started(clock, command, Server("127.0.0.1", port), {**os.environ, **_KV_GIB}) as peer:
            yield peer


@asynccontextmanager
async def started(
    clock: Clock, command: Sequence[str], server: Server, environment: Mapping[str, str]
) -> AsyncIterator[Peer]:
    """Starts `command`, yields it once its /health returns 200, and stops it. ConfigError with the end of its log."""
    with TemporaryFile() as log:
        child = await asyncio.create_subprocess_exec(
            *tied(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        peer = Peer(child, server)
        try:
            await _healthy(clock, child, server, log)
            yield peer
        finally:
            await peer.stop()


async def _healthy(clock: Clock, child: asyncio.subprocess.Process, server: Server, log: IO[bytes]) -> None:
    deadline = clock.now() + START_S
    while child.returncode is None and clock.now() < deadline:
        with contextlib.suppress(Broken):
            status, _ = await get(server, clock, "/health", timeout_s=5.0)
            if status == 200:
                return
        await asyncio.sleep(_LOOK_S)
    how = f"was not healthy within {START_S:g} s" if child.returncode is None else f"ended with {child.returncode}"
    raise ConfigError(f"the peer {how}:\n{_tail(log)}")


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return b"\n".join(log.read().splitlines()[-_LOG_LINES:]).decode(errors="replace")


async def version_of(executable: str) -> str:
    """The version that the peer's Python reports, or "unknown"."""
    python = Path(executable).with_name("python")
    program = python if python.exists() else Path(sys.executable)
    child = await asyncio.create_subprocess_exec(
        str(program), "-c", "from importlib.metadata import version; print(version('vllm'))",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    said, _ = await child.communicate()
    return said.decode().strip() or "unknown"
