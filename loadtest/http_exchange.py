"""One HTTP/1.1 request, and the lines of its answer, each with its arrival time.

Made for measuring on the machine that serves: httptools parses, and nothing else is done for a line. A request has its
own connection, or one of `Connections`, which stay open for the next request, as those of browsers and SDKs do.
Cancelling `exchange` closes the connection at once, like a client that leaves.
"""

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools
import orjson

from protocol.errors import ConfigError
from runtime.clock import Clock
from runtime.keys import read_api_keys

OnLine = Callable[
    [float, bytes], bool
]  # (arrival in seconds, line without its end); return False to close the connection
KEY_VARIABLE = "OPENAI_API_KEY"
KEYS_VARIABLE = "BATON_API_KEY_FILE"  # a Baton that is started here also reads it
TIMEOUT_S = 600.0
IDLE_S = 2.0  # after which a connection is not used again: servers close idle ones after some seconds
LATE = "no end within"  # the kind of a Broken that came too late begins so
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

    def __str__(self) -> str:
        return f"http{'s' * self.tls}://{self.host}:{self.port}{self.path}"


def _key_of_environment() -> str:
    key, file = os.environ.get(KEY_VARIABLE), os.environ.get(KEYS_VARIABLE)
    return key or (read_api_keys(file)[0] if file else "")


class Broken(Exception):
    """The exchange did not finish: refused, reset, cut off, too late, or not HTTP. Alike ones have the same `kind`."""

    def __init__(self, kind: str, more: object = "") -> None:
        super().__init__(f"{kind}: {more}" if more else kind)
        self.kind = kind


def refusal(status: int, body: bytes) -> str:
    """`HTTP 401: ` and the server's message, or the start of the body; for 401 and 403 a hint about the key."""
    try:
        message = str(orjson.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = body.decode(errors="replace")
    hint = "; --api-key-file FILE names a file with the key" if status in (401, 403) else ""
    return f"HTTP {status}: {message[:200]}{hint}"


async def exchange(
    server: Server, clock: Clock, method: str, path: str, body: bytes, on_line: OnLine, timeout_s: float = TIMEOUT_S
) -> int:
    """Sends a request and calls `on_line` with each line of the answer's body. Returns the status. Raises Broken."""
    connections = Connections(server, clock, keep=False)
    return await connections.exchange(method, path, body, on_line, timeout_s)


async def get(server: Server, clock: Clock, path: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """Status and body of a GET. Raises Broken."""
    return await ask(server, clock, "GET", path, b"", timeout_s)


async def ask(
    server: Server, clock: Clock, method: str, path: str, body: bytes, timeout_s: float = TIMEOUT_S
) -> tuple[int, bytes]:
    """Status and body of an answer. Raises Broken."""
    lines: list[bytes] = []

    def keep(_: float, line: bytes) -> bool:
        lines.append(line)
        return True

    status = await exchange(server, clock, method, path, body, keep, timeout_s)
    return status, b"\n".join(lines)


class Connections:
    """Connections to one server. After an answer they wait here for the next request, unless `keep` is False."""

    def __init__(self, server: Server, clock: Clock, *, keep: bool = True) -> None:
        self._server = server
        self._clock = clock
        self._keep = keep
        self._idle: list[tuple[float, _Connection]] = []  # since when; the last one is used first
        self._tls = ssl.create_default_context() if server.tls else None

    async def exchange(self, method: str, path: str, body: bytes, on_line: OnLine, timeout_s: float = TIMEOUT_S) -> int:
        """Like the function. A server may close a kept connection at any moment: then the request gets a new one."""
        request = _head(self._server, method, path, len(body), self._keep) + body
        try:
            async with asyncio.timeout(timeout_s):
                while connection := self._waiting():
                    try:
                        return await self._asked(connection, request, on_line)
                    except Broken:
                        if connection.has_heard:
                            raise
                return await self._asked(await self._connected(), request, on_line)
        except TimeoutError as error:
            raise Broken(f"{LATE} {timeout_s:g} s") from error
        except OSError as error:
            raise Broken(type(error).__name__, error) from error

    def close(self) -> None:
        """Closes those that wait."""
        for _, connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _asked(self, connection: "_Connection", request: bytes, on_line: OnLine) -> int:
        try:
            return await connection.ask(request, on_line)
        finally:
            connection.forget()
            if self._keep and connection.is_reusable:
                self._idle.append((self._clock.now(), connection))
            else:
                connection.close()

    def _waiting(self) -> "_Connection | None":
        while self._idle:
            since, connection = self._idle.pop()
            if connection.is_reusable and self._clock.now() - since < IDLE_S:
                return connection
            connection.close()
        return None

    async def _connected(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(self._clock), self._server.host, self._server.port, ssl=self._tls
        )
        return connection


def _head(server: Server, method: str, path: str, num_bytes: int, keep: bool) -> bytes:
    host = f"[{server.host}]" if ":" in server.host else server.host
    lines = [f"{method} {server.path}{path} HTTP/1.1", f"Host: {host}:{server.port}"]
    if not keep:
        lines.append("Connection: close")
    if server.key:
        lines.append(f"Authorization: Bearer {server.key}")
    if num_bytes:
        lines += ["Content-Type: application/json", f"Content-Length: {num_bytes}"]
    return "\r\n".join([*lines, "", ""]).encode()


class _Connection(asyncio.Protocol):
    """Cuts what arrives into lines. Lines of one read have the same time. One request at a time."""

    def __init__(self, clock: Clock) -> None:
        self.is_reusable = False  # an answer has ended, and the server keeps the connection
        self.has_heard = False  # anything of the answer to the request that runs
        self._clock = clock
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._status: asyncio.Future[int] | None = None  # of the request that runs
        self._on_line: OnLine = lambda _now, _line: False
        self._now = 0.0
        self._rest = b""

    def ask(self, request: bytes, on_line: OnLine) -> "asyncio.Future[int]":
        """Sends a request. The status is there at the answer's end, or when `on_line` has had enough."""
        assert self._transport is not None
        self.is_reusable = self.has_heard = False
        self._status = asyncio.get_running_loop().create_future()
        self._on_line, self._rest = on_line, b""
        self._transport.write(request)
        return self._status

    def close(self) -> None:
        """At once, like a client that leaves."""
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    def forget(self) -> None:
        """Drops a result or an error that comes too late, so that asyncio does not report it."""
        if self._status is not None:
            if self._status.done() and not self._status.cancelled():
                self._status.exception()
            self._status.cancel()

    # ---- called by the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        self._now = self._clock.now()
        self.has_heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.is_reusable = False
            self._fail("not HTTP", error)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_reusable = False
        if error:
            self._fail("cut off", error)
        else:
            self._fail("the connection was closed before the answer's end")

    # ---- called by the parser ----

    def on_body(self, body: bytes) -> None:
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            self._hand_on(line)

    def on_message_complete(self) -> None:
        if self._rest:
            self._hand_on(self._rest)
        if self._status is not None and not self._status.done():  # else it has been ended: bytes may follow
            self.is_reusable = self._parser.should_keep_alive()
            self._end()

    def _hand_on(self, line: bytes) -> None:
        if self._status is not None and not self._status.done() and not self._on_line(self._now, line):
            self._end()

    def _end(self) -> None:
        if self._status is not None and not self._status.done():
            self._status.set_result(self._parser.get_status_code())

    def _fail(self, kind: str, more: object = "") -> None:
        if self._status is not None and not self._status.done():
            self._status.set_exception(Broken(kind, more))
