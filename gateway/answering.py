"""Writes a generation as an HTTP response, streamed or whole, and ends it early when the client leaves.

The status line waits for the first token, so that a request that fails before it gets the right status.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.answer_body import DONE, ChunkWriter, WholeAnswer, event
from gateway.generation import Batch, Generation, Usage
from gateway.http_errors import error_object, error_response, json_response
from gateway.schemas import short
from gateway.slow_reader import BACKLOG, backlog_of
from protocol.errors import BadRequest

TIMELINE_HEADER = "x-baton-timeline"
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def wants_timeline(request: Request, in_body: bool | None) -> bool:
    """Whether the client asks for the time line. The body decides; if it does not say, the header does."""
    if in_body is not None:
        return in_body
    header = request.headers.get(TIMELINE_HEADER, "false")
    if header not in ("true", "false"):
        raise BadRequest(f"{TIMELINE_HEADER}: got {short(header)}, expected true or false", param=TIMELINE_HEADER)
    return header == "true"


async def answer_whole(generation: Generation, answer: WholeAnswer, receive: Receive) -> Response:
    """Waits for all choices."""
    with _watched(generation, receive):
        async for batch in generation.batches():
            answer.add(batch)

    if not generation.is_complete:
        return _failed(generation)
    return json_response(answer.body(generation.usage, generation.timeline()))


class StreamedAnswer(Response):
    """Server-sent events. Everything that is ready in one turn of the loop goes out in one write."""

    def __init__(self, generation: Generation, writer: ChunkWriter) -> None:
        super().__init__()
        self._generation = generation
        self._writer = writer
        self._is_plain = not (generation.with_timeline or writer.continuous)  # chunks carry nothing but tokens
        self._num_sent = 0  # tokens of all choices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs until every choice has finished, one has failed, or the client has left."""
        backlog = backlog_of(scope)
        if backlog is not None:
            max_pieces, cut = backlog
            self._generation.bound_backlog(max_pieces, lambda: cut(BACKLOG))

        batches = self._generation.batches()
        with _watched(self._generation, receive):
            first = await anext(batches, None)
            if first is None:
                await _failed(self._generation)(scope, receive, send)
            else:
                await self._stream(first, batches, send)

    async def _stream(self, first: Batch, batches: AsyncIterator[Batch], send: Send) -> None:
        async def write(message: Message) -> None:
            self._generation.is_held = True  # while the connection accepts nothing
            await send(message)
            self._generation.is_held = False

        await write({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await write(_body(self._chunks(first)))
        self._generation.first_chunk_written()

        async for batch in batches:
            await write(_body(self._chunks(batch)))

        await send(_body(self._last(), more=False))

    def _chunks(self, batch: Batch) -> bytes:
        generation, writer = self._generation, self._writer
        if self._is_plain and len(batch) == 1:  # nearly every batch
            return writer.chunk(*batch[0])

        is_last = not writer.include_usage and generation.is_drained
        lines: list[bytes] = []
        for place, (index, piece) in enumerate(batch, start=1):
            timeline = generation.timeline() if is_last and place == len(batch) else None
            self._num_sent += piece.token_id is not None
            usage = Usage(generation.num_prompt_tokens, self._num_sent) if writer.continuous else None
            lines.append(writer.chunk(index, piece, usage, timeline))

        return b"".join(lines)

    def _last(self) -> bytes:
        generation = self._generation
        if generation.error is not None:
            return event(error_object(generation.error))
        if not generation.is_complete:
            return b""
        if not self._writer.include_usage:
            return DONE
        return self._writer.usage_chunk(generation.usage, generation.timeline()) + DONE


def _body(content: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


def _failed(generation: Generation) -> Response:
    """The response to a request that has no answer. The status is 499 if the client has left, for the log."""
    return Response(status_code=499) if generation.error is None else error_response(generation.error)


@contextmanager
def _watched(generation: Generation, receive: Receive) -> Iterator[None]:
    """Ends the generation when the client leaves, at the latest when the block ends."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.abandon()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        generation.abandon()
