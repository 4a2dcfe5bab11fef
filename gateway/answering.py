"""Writes a generation as an HTTP response, and ends it early when the client leaves.

The response is one JSON body, or a stream of chunks. A chunk has the tokens that one launch has drawn for a choice:
one, or several with a draft. Tokens that reached the gateway too early go out with those before them, in one chunk.
The status line waits for the first token, so that a request that fails before it gets the right status. The part of a
chunk that never changes is encoded once.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.choice_text import Piece
from gateway.complaints import short
from gateway.generation import Batch, Generation
from gateway.http_errors import error_event, error_response, json_response
from gateway.http_protocol import BACKLOG, backlog_of
from gateway.logprobs import LogprobWriter, ScoredToken
from gateway.prompt_part import LONG, PromptWriter, in_blocks
from protocol.errors import BadRequest

TIMELINE_HEADER = "x-baton-timeline"
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
DONE = b"data: [DONE]\n\n"
# OpenAI's messages always have these. Clients with strict types fail without them.
MESSAGE: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None, "annotations": []}
FIRST_DELTA: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
Fields = dict[str, Any]
Timeline = list[Fields]


class Body(Protocol):
    """How an API writes an answer that is not streamed."""

    def body(self, generation: Generation, found: list[list[Piece]]) -> Any:
        """The JSON body. `found[i]` are the pieces of choice i."""
        ...


class Chunks(Protocol):
    """How an API writes a stream."""

    def chunks(self, generation: Generation, batch: Batch) -> bytes:
        """The events of what choices have gained together; b"" if they are told later."""
        ...

    def last(self, generation: Generation) -> bytes:
        """What follows the last piece of a generation that is complete."""
        ...


@dataclass(frozen=True)
class ResponseHead:
    """What all choices of a response share. `created` is in seconds since 1970."""

    response_id: str
    created: int
    model: str
    is_chat: bool
    with_token_ids: bool
    logprobs: LogprobWriter | None = None  # None: nobody asks for them
    prompt_logprobs: PromptWriter | None = None  # the same of the field of this name

    def fields(self, chat_object: str) -> dict[str, Any]:
        """The first fields of a chunk or body. `chat_object` says which of the two it is, in a chat."""
        kind = chat_object if self.is_chat else "text_completion"
        return {"id": self.response_id, "object": kind, "created": self.created, "model": self.model}

    def choice(
        self,
        index: int,
        text: dict[str, Any],
        finish_reason: str | None,
        token_ids: Sequence[int],
        logprobs: Collection[ScoredToken] = (),
    ) -> dict[str, Any]:
        """One choice. `text` is the field that holds its text."""
        scored = self.logprobs.write(logprobs) if self.logprobs is not None else None
        choice = {"index": index, **text, "logprobs": scored, "finish_reason": finish_reason}
        return choice | {"token_ids": token_ids} if self.with_token_ids else choice

    def whole_choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        """One choice of a body, of all its pieces."""
        content = "".join(piece.text for piece in pieces)
        text = {"message": MESSAGE | {"content": content}} if self.is_chat else {"text": content}
        token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
        logprobs = [each for piece in pieces for each in piece.logprobs]
        return self.choice(index, text, pieces[-1].finish_reason, token_ids, logprobs)

    def body(self, generation: Generation, found: list[list[Piece]]) -> Fields:
        """See Body."""
        choices = [self.whole_choice(index, pieces) for index, pieces in enumerate(found)]
        body = self.fields("chat.completion") | {"choices": choices, "usage": generation.usage}
        if self.prompt_logprobs is not None:
            self._add_prompts(self.prompt_logprobs, generation, body)
        timeline = generation.timeline()
        return body if timeline is None else body | {"timeline": timeline}

    def _add_prompts(self, writer: PromptWriter, generation: Generation, body: Fields) -> None:
        written: dict[int, Any] = {}  # by id of the prompt's part: choices of one prompt share it
        for index, choice in enumerate(body["choices"]):
            if (part := generation.prompts.part(index)) is not None:
                if id(part) not in written:
                    written[id(part)] = in_blocks(writer.entries(part))
                (body if self.is_chat else choice)["prompt_logprobs"] = written[id(part)]


class ChunkWriter:
    """Writes the chunks of one response."""

    def __init__(self, head: ResponseHead, include_usage: bool, continuous_usage: bool) -> None:
        self._head = head
        self.include_usage = include_usage
        self.continuous = include_usage and continuous_usage  # each chunk carries the usage so far
        self._start = b"data: " + orjson.dumps(head.fields("chat.completion.chunk"))[:-1] + b',"choices":['
        self._end = self._rest(None, None)
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # by choice: the bytes around the text of a plain chunk
        self._num_sent = 0  # tokens of all choices

    def chunks(self, generation: Generation, batch: Batch) -> bytes:
        """See Chunks. The time line, if the client asks for it, is in the last chunk."""
        if len(batch) == 1 and not (self.continuous or generation.times.with_timeline):  # nearly every batch
            return self.chunk(*batch[0])

        is_last = not self.include_usage and generation.is_drained
        lines: list[bytes] = []
        for place, (index, piece) in enumerate(batch, start=1):
            timeline = generation.timeline() if is_last and place == len(batch) else None
            self._num_sent += len(piece.token_ids)
            usage = generation.usage_at(self._num_sent) if self.continuous else None
            lines.append(self.chunk(index, piece, usage, timeline))

        return b"".join(lines)

    def last(self, generation: Generation) -> bytes:
        """See Chunks."""
        if not self.include_usage:
            return DONE
        return self.usage_chunk(generation.usage, generation.timeline()) + DONE

    def chunk(self, index: int, piece: Piece, usage: Fields | None = None, timeline: Timeline | None = None) -> bytes:
        """The chunk of one piece of the choice `index`. `usage` counts the tokens up to its last one, if the client
        asked for continuous usage."""
        text, token_ids, finish_reason, logprobs, _ = piece

        frame = self._frames.get(index)
        is_plain = finish_reason is None and timeline is None and usage is None and not logprobs
        if frame is not None and is_plain:
            before, after = frame
            if self._head.with_token_ids:
                ids = orjson.dumps(token_ids)
                return b'%b%b%b,"token_ids":%b}%b' % (before, orjson.dumps(text), after, ids, self._end)
            return before + orjson.dumps(text) + after

        delta: Fields = {}
        if frame is None:
            delta, self._frames[index] = FIRST_DELTA, self._frame(index)
        content = {"delta": delta | {"content": text}} if self._head.is_chat else {"text": text}
        choice = self._head.choice(index, content, finish_reason, token_ids, logprobs)
        if not logprobs:
            choice["logprobs"] = None  # nothing to tell in this chunk
        return self._start + orjson.dumps(choice) + self._rest(usage, timeline)

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """The bytes before and after the text of a chunk that only adds text."""
        before = self._start + b'{"index":%d,' % index + (b'"delta":{"content":' if self._head.is_chat else b'"text":')
        after = b"}" * self._head.is_chat + b',"logprobs":null,"finish_reason":null'
        return before, after if self._head.with_token_ids else after + b"}" + self._end

    def usage_chunk(self, usage: Fields, timeline: Timeline | None) -> bytes:
        """The chunk without choices that reports usage, after all others."""
        return self._start + self._rest(usage, timeline)

    def _rest(self, usage: Fields | None, timeline: Timeline | None) -> bytes:
        """The end of a chunk, after its choices: usage and time line, if they belong there."""
        last: dict[str, Any] = {"usage": usage} if self.include_usage else {}
        if timeline is not None:
            last["timeline"] = timeline
        return b"]" + (b"," + orjson.dumps(last)[1:] if last else b"}") + b"\n\n"


def wants_timeline(request: Request, in_body: bool | None) -> bool:
    """Whether the client asks for the time line. The body decides; if it does not say, the header does."""
    if in_body is not None:
        return in_body
    header = request.headers.get(TIMELINE_HEADER, "false")
    if header not in ("true", "false"):
        raise BadRequest(f"{TIMELINE_HEADER}: got {short(header)}, expected true or false", param=TIMELINE_HEADER)
    return header == "true"


async def answer_whole(generation: Generation, shape: Body, receive: Receive) -> Response:
    """Waits for all choices, and answers with one JSON body."""
    found: list[list[Piece]] = [[] for _ in range(generation.prompts.num_choices)]
    with _watched(generation, receive):
        async for batch in generation.batches():
            for index, piece in batch:
                found[index].append(piece)

    if not generation.is_complete:
        return _failed(generation)

    if generation.prompts.num_scored > LONG:
        return json_response(await asyncio.to_thread(shape.body, generation, found))
    return json_response(shape.body(generation, found))


class StreamedAnswer(Response):
    """Server-sent events. Everything that is ready in one turn of the loop goes out in one write."""

    def __init__(self, generation: Generation, shape: Chunks) -> None:
        super().__init__()
        self._generation = generation
        self._shape = shape
        self._begun: set[int] = set()  # choices that have been told of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs until every choice has finished, one has failed, or the client has left."""
        backlog = backlog_of(scope)
        if backlog is not None:
            max_tokens, cut = backlog
            self._generation.bound_backlog(max_tokens, lambda: cut(BACKLOG))

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
        await write(_body(await self._written(first)))
        self._generation.times.first_chunk_written()

        async for batch in batches:
            if content := await self._written(batch):
                await write(_body(content))

        await send(_body(self._last(), more=False))

    async def _written(self, batch: Batch) -> bytes:
        """The chunks of a batch. A choice begins with what is told of its prompt: if that is much, in a thread."""
        begins = {index for index, _ in batch} - self._begun
        self._begun |= begins
        if begins and self._generation.prompts.num_scored > LONG:
            return await asyncio.to_thread(self._shape.chunks, self._generation, batch)
        return self._shape.chunks(self._generation, batch)

    def _last(self) -> bytes:
        generation = self._generation
        if generation.error is not None:
            return error_event(generation.error)
        return self._shape.last(generation) if generation.is_complete else b""


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
