"""Writes a generation as an HTTP response, and ends it early when the client leaves.

The response is one JSON body, or a stream of events. What is long goes out in parts (parts.py), which long_answers.py
encodes in turn with those of others. The status line waits for the first token, so that a request that fails before it
gets the right status. The write.py of each dialect says how an answer is written.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.generation.generation import Generation
from gateway.http.errors import error_response
from gateway.http.protocol import BACKLOG, backlog_of
from gateway.serving.gathered import Gathered
from gateway.serving.long_answers import Held, LongAnswers
from gateway.serving.parts import KEPT_BYTES, PART_BYTES, next_part, parts_of
from gateway.words.complaints import short
from gateway.words.events import Batch
from protocol.errors import BadRequest, BatonError, Overloaded

TIMELINE_HEADER = "x-baton-timeline"
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
JSON_TYPE = "application/json"
JSON_HEADERS = ((b"content-type", JSON_TYPE.encode()),)
DONE = b"data: [DONE]\n\n"
JSON_TIMES = 10  # JSON of log-probabilities is so many times longer than they are, at most


class Body(Protocol):
    """How an API writes an answer that is not streamed."""

    def gathers(self) -> Gathered:
        """What keeps one choice until the answer is written."""
        ...

    def body(self, generation: Generation, gathered: Sequence[Gathered]) -> Any:
        """The JSON body, in which long values are Laters. `gathered[i]` is choice i."""
        ...


class Chunks(Protocol):
    """How an API writes a stream."""

    @property
    def num_bytes(self) -> int:
        """The part of the answer that this object holds so far."""
        ...

    def events(self, generation: Generation, batch: Batch) -> bytes | Iterator[bytes]:
        """The events of what choices have gained together; b"" if they are told later. Long ones in blocks, which are
        encoded when they are asked for, perhaps in a thread, and before the next batch."""
        ...

    def last(self, generation: Generation) -> bytes:
        """What follows the last Step of a generation that is complete."""
        ...

    def failed(self, error: BatonError) -> bytes:
        """The events that end the stream of a generation that has failed."""
        ...


def wants_timeline(request: Request, in_body: bool | None) -> bool:
    """Whether the client asks for the time line. The body decides; if it does not say, the header does."""
    if in_body is not None:
        return in_body
    header = request.headers.get(TIMELINE_HEADER, "false")
    if header not in ("true", "false"):
        raise BadRequest(f"{TIMELINE_HEADER}: got {short(header)}, expected true or false", param=TIMELINE_HEADER)
    return header == "true"


class WholeAnswer(Response):
    """One JSON body. A long one is sent in parts, while the client takes them."""

    def __init__(self, generation: Generation, shape: Body, answers: LongAnswers) -> None:
        super().__init__()
        self._generation, self._shape, self._answers = generation, shape, answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Waits for all choices and answers, or ends when one has failed or the client has left."""
        generation = self._generation
        with self._answers.holding(_cut_of(scope)) as held, _watched(generation, receive) as has_left:
            gathered = await self._gathered(held)
            if not generation.is_complete:
                await _failed(generation)(scope, receive, send)
                return

            blocks = parts_of(self._shape.body(generation, gathered))
            first = next_part(blocks)
            if len(first) < PART_BYTES:  # it is all
                await Response(first, media_type=JSON_TYPE)(scope, receive, send)
                return

            self._answers.resize(held, held.num_bytes + sum(choice.num_bytes for choice in gathered))
            await send({"type": "http.response.start", "status": 200, "headers": JSON_HEADERS})
            part = first
            while part and not has_left():
                with self._answers.sending(held):
                    await send(_body(part))
                part = await self._answers.next_part(blocks)
            if not has_left():
                await send(_body(b"", more=False))

    async def _gathered(self, held: Held) -> list[Gathered]:
        """What the choices have at the end. Their log-probabilities count while they come: Overloaded if there is no
        room for them, unless the generation fails with that."""
        generation, refused = self._generation, None
        gathered = [self._shape.gathers() for _ in range(generation.prompts.num_choices)]
        async for batch in generation.batches():
            grown = 0 if held.num_bytes else _num_score_bytes(generation)
            for index, step in batch:
                grown += gathered[index].take(step)
            if grown and refused is None:
                try:
                    self._answers.resize(held, held.num_bytes + grown)
                except Overloaded as error:
                    refused = error
                    generation.on_failed(error)

        if refused is not None and generation.error is None:  # all choices had finished
            raise refused
        return gathered


class StreamedAnswer(Response):
    """Server-sent events. Everything that is ready in one turn of the loop goes out in one write, unless it is long."""

    def __init__(self, generation: Generation, shape: Chunks, answers: LongAnswers) -> None:
        super().__init__()
        self._generation, self._shape, self._answers = generation, shape, answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs until every choice has finished, one has failed, or the client has left."""
        backlog = backlog_of(scope)
        if backlog is not None:
            max_tokens, cut = backlog
            self._generation.bound_backlog(max_tokens, lambda: cut(BACKLOG))

        batches = self._generation.batches()
        with self._answers.holding(_cut_of(scope)) as held, _watched(self._generation, receive) as has_left:
            first = await anext(batches, None)
            if first is None:
                await _failed(self._generation)(scope, receive, send)
            else:
                await self._stream(first, batches, send, held, has_left)

    async def _stream(
        self, first: Batch, batches: AsyncIterator[Batch], send: Send, held: Held, has_left: Callable[[], bool]
    ) -> None:
        generation, answers = self._generation, self._answers

        async def write(message: Message) -> None:
            generation.is_held = True  # while the connection accepts nothing
            with answers.sending(held):
                await send(message)
            generation.is_held = False

        def count() -> None:
            if num_bytes := num_prompt_bytes + self._shape.num_bytes:
                try:
                    answers.resize(held, num_bytes)
                except Overloaded as error:
                    generation.on_failed(error)

        async def write_batch(batch: Batch) -> None:
            content = self._shape.events(generation, batch)
            if isinstance(content, bytes):
                if content:
                    await write(_body(content))
                return
            while not has_left():
                generation.is_held = True  # while parts are encoded, too
                if not (part := await answers.next_part(content)):
                    break
                await write(_body(part))
            generation.is_held = False

        num_prompt_bytes = _num_score_bytes(generation)
        count()
        await write({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await write_batch(first)
        generation.times.first_event_written()
        count()

        async for batch in batches:
            await write_batch(batch)
            count()

        await send(_body(self._last(), more=False))

    def _last(self) -> bytes:
        generation = self._generation
        if generation.error is not None:
            return self._shape.failed(generation.error)
        return self._shape.last(generation) if generation.is_complete else b""


def _num_score_bytes(generation: Generation) -> int:
    """Memory of the log-probabilities of prompts, and of what is kept of them as JSON."""
    parts = [record.prompt_part for record in generation.prompts.records if record.prompt_part is not None]
    return sum(part.num_bytes + min(JSON_TIMES * part.num_bytes, 2 * KEPT_BYTES) for part in parts)


def _body(content: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


def _failed(generation: Generation) -> Response:
    """The response to a request that has no answer. The status is 499 if the client has left, for the log."""
    return Response(status_code=499) if generation.error is None else error_response(generation.error)


def _cut_of(scope: Scope) -> Callable[[], None]:
    """Ends the connection of a client that does not read."""
    backlog = backlog_of(scope)
    return (lambda: None) if backlog is None else partial(backlog[1], BACKLOG)


@contextmanager
def _watched(generation: Generation, receive: Receive) -> Iterator[Callable[[], bool]]:
    """Ends the generation when the client leaves, at the latest when the block ends. Yields whether it has left."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.abandon()

    watcher = asyncio.create_task(watch())
    try:
        yield watcher.done
    finally:
        watcher.cancel()
        generation.abandon()
