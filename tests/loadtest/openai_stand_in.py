"""A server of a few lines that says what a test wants it to say, and counts who is there."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from loadtest.http_exchange import Server

Answer = Callable[[dict[str, Any]], Iterable[bytes | None]]  # pieces of the body; None hangs up
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class StandIn:
    """`answer` makes the pieces of a completion's body; between two pieces it waits for `pause_s`."""

    def __init__(self, answer: Answer, status: bytes = STREAM, pause_s: float = 0.0, has_metrics: bool = False) -> None:
        self.answer, self.status, self.pause_s, self.has_metrics = answer, status, pause_s, has_metrics
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.asked: asyncio.Queue[None] = asyncio.Queue()  # one entry for each completion
        self.left: asyncio.Queue[None] = asyncio.Queue()  # one for each client that did not wait for the end
        self.unanswered = self.most_at_once = self.num_pieces = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            await self._serve(reader, writer)
        except asyncio.IncompleteReadError:
            self.left.put_nowait(None)  # it left before it had said what it wants

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("Content-Length:")), 0)
        body = json.loads(await reader.readexactly(length) or b"{}")
        try:
            if head.startswith("GET"):
                is_counted = self.has_metrics and "/metrics" in head
                page = b"pieces_total %d" % self.num_pieces if is_counted else b'{"data": [{"id": "stand-in"}]}'
                writer.write(STREAM + chunked(page) + chunked(b""))
                await writer.drain()
            else:
                self.bodies.append(body)
                self.asked.put_nowait(None)
                self.unanswered += 1
                self.most_at_once = max(self.most_at_once, self.unanswered)
                await self._answer(body, writer)
        except ConnectionError:
            self.left.put_nowait(None)
        finally:
            writer.close()

    async def _answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(self.status)
        for piece in self.answer(body):
            if piece is None:
                return
            self.num_pieces += 1
            self.unanswered -= b"[DONE]" in piece  # from here on the client may send its next one
            writer.write(chunked(piece))
            await writer.drain()
            await asyncio.sleep(self.pause_s)
        writer.write(chunked(b""))
        await writer.drain()


def chunked(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


def tokens(body: dict[str, Any]) -> list[bytes | None]:
    """What a well-behaved server says: a chunk per token, usage, [DONE]."""
    token = b'data: {"choices": [{"index": 0, "text": "x"}], "usage": null}\n\n'
    usage = b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\n' % body["max_tokens"]
    return [*[token] * int(body["max_tokens"]), usage, b"data: [DONE]\n\n"]


@asynccontextmanager
async def standing_in(stand_in: StandIn) -> AsyncIterator[Server]:
    """Where it answers."""
    async with listening(stand_in.serve) as server:
        yield server


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[Server]:
    """Where each connection is served like this, until the test ends."""
    serving: set[asyncio.Task[None]] = set()

    async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            if not writer.is_closing():
                writer.transport.abort()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.create_task(until_closed(reader, writer)))

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield Server("127.0.0.1", listener.sockets[0].getsockname()[1])
    finally:
        listener.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.sleep(0)  # transports close a turn later
