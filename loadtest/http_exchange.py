"""One HTTP/1.1 request on its own connection, and the lines of its answer, each with its arrival time.

Made for measuring on the machine that serves: httptools parses, and nothing else is done for a line. Cancelling
`exchange` closes the connection at once, like a client that leaves.
"""

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

from protocol.errors import ConfigError
from runtime.clock import Clock
from runtime.keys import read_api_keys

OnLine = Callable[
    [float, bytes], bool
]  # (arrival in seconds, line without its end); return False to close the connection
KEY_VARIABLE = "OPENAI_API_KEY"
KEYS_VARIABLE = "BATON_API_KEY_FILE"  # a Baton that is started here also reads it
TIMEOUT_S = 600.0
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Server:
    """The address of an OpenAI server. `path` comes before /v1. `key` is sent as a bearer token unless it is empty."""

    host: str
    port: int
    tls: bool = False
    path: str = ""
    key: str = ""

    @classmethod
    def at(cls, url: str, key: str | None = None) -> "Server":
        """The server at `url`, which may end in /v1. `key` defaults to the environment. ConfigError for no URL."""
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme)
        except ValueError as error:
            raise ConfigError(f"--url {url!r}: {error}", param="url") from error
        if not parts.hostname or port is None or parts.query or parts.fragment:
            raise ConfigError(f"--url: got {url!r}, expected something like http://127.0.0.1:8000", param="url")
        path = parts.path.rstrip("/").removesuffix("/v1")
        key = _key_of_environment() if key is None else key
        return cls(parts.hostname, port, parts.scheme == "https", path, key)


def _key_of_environment() -> str:
    key, file = os.environ.get(KEY_VARIABLE), os.environ.get(KEYS_VARIABLE)
    return key or (read_api_keys(file)[0] if file else "")


class Broken(Exception):
    """The exchange did not finish: refused, reset, cut off, too late, or not HTTP."""


async def exchange(
    server: Server, clock: Clock, method: str, path: str, body: bytes, on_line: OnLine, timeout_s: float = TIMEOUT_S
) -> int:
    """Sends a request and calls `on_line` with each line of the answer's body. Returns the status. Raises Broken."""
    loop = asyncio.get_running_loop()
    reader = _Reader(clock, on_line)
    transport: asyncio.Transport | None = None

    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(
                lambda: reader, server.host, server.port, ssl=ssl.create_default_context() if server.tls else None
            )
            transport.write(_head(server, method, path, len(body)) + body)
            return await reader.status
    except TimeoutError as error:
        raise Broken(f"no end within {timeout_s:g} s") from error
    except OSError as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
    finally:
        if transport is not None:
            transport.abort()
        reader.forget()


async def get(server: Server, clock: Clock, path: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """Status and body of a GET. Raises Broken."""
    lines: list[bytes] = []

    def keep(_: float, line: bytes) -> bool:
        lines.append(line)
        return True

    status = await exchange(server, clock, "GET", path, b"", keep, timeout_s)
    return status, b"\n".join(lines)


def _head(server: Server, method: str, path: str, num_bytes: int) -> bytes:
    host = f"[{server.host}]" if ":" in server.host else server.host
    lines = [f"{method} {server.path}{path} HTTP/1.1", f"Host: {host}:{server.port}", "Connection: close"]
    if server.key:
        lines.append(f"Authorization: Bearer {server.key}")
    if num_bytes:
        lines += ["Content-Type: application/json", f"Content-Length: {num_bytes}"]
    return "\r\n".join([*lines, "", ""]).encode()


class _Reader(asyncio.Protocol):
    """Cuts what arrives into lines. Lines of one read have the same time. `status` is set at the end."""

    def __init__(self, clock: Clock, on_line: OnLine) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._clock = clock
        self._on_line = on_line
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        self._now = self._clock.now()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"cut off: {error}" if error else "the connection was closed before the answer's end")

    def forget(self) -> None:
        """Drops a result or an error that comes too late, so that asyncio does not report it."""
        if self.status.done() and not self.status.cancelled():
            self.status.exception()
        self.status.cancel()

    # ---- called by the parser ----

    def on_body(self, body: bytes) -> None:
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            self._hand_on(line)

    def on_message_complete(self) -> None:
        if self._rest:
            self._hand_on(self._rest)
        self._end()

    def _hand_on(self, line: bytes) -> None:
        if not self.status.done() and not self._on_line(self._now, line):
            self._end()

    def _end(self) -> None:
        if not self.status.done():
            self.status.set_result(self._parser.get_status_code())

    def _fail(self, why: str) -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            self.status.set_exception(Broken(why))
