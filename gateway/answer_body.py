"""Writes answers: the chunks of a stream, one for each token, as `data: {...}` lines; or one JSON body.

The part of a chunk that never changes is encoded once.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from gateway.choice_text import Piece
from gateway.generation import Batch, Usage

DONE = b"data: [DONE]\n\n"
Timeline = list[dict[str, Any]]


@dataclass(frozen=True)
class ResponseHead:
    """What all choices of a response share. `created` is in seconds since 1970."""

    response_id: str
    created: int
    model: str
    is_chat: bool
    with_token_ids: bool

    def fields(self, chat_object: str) -> dict[str, Any]:
        """The first fields of a chunk or body. `chat_object` says which of the two it is, in a chat."""
        kind = chat_object if self.is_chat else "text_completion"
        return {"id": self.response_id, "object": kind, "created": self.created, "model": self.model}

    def choice(
        self, index: int, text: dict[str, Any], finish_reason: str | None, token_ids: list[int]
    ) -> dict[str, Any]:
        """One choice. `text` is the field that holds its text."""
        choice = {"index": index, **text, "logprobs": None, "finish_reason": finish_reason}
        return choice | {"token_ids": token_ids} if self.with_token_ids else choice


class WholeAnswer:
    """Gathers the pieces of all choices of one response."""

    def __init__(self, head: ResponseHead, num_choices: int) -> None:
        self._head = head
        self._pieces: list[list[Piece]] = [[] for _ in range(num_choices)]

    def add(self, batch: Batch) -> None:
        """Adds what the choices gained."""
        for index, piece in batch:
            self._pieces[index].append(piece)

    def body(self, usage: Usage, timeline: Timeline | None) -> dict[str, Any]:
        """The JSON body. Call it once every choice has finished."""
        choices = [self._choice(index, pieces) for index, pieces in enumerate(self._pieces)]
        body = self._head.fields("chat.completion") | {"choices": choices, "usage": usage.to_json()}
        return body if timeline is None else body | {"timeline": timeline}

    def _choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        content = "".join(piece.text for piece in pieces)
        text = {"message": {"role": "assistant", "content": content}} if self._head.is_chat else {"text": content}
        token_ids = [piece.token_id for piece in pieces if piece.token_id is not None]
        return self._head.choice(index, text, pieces[-1].finish_reason, token_ids)


class ChunkWriter:
    """Writes the chunks of one response."""

    def __init__(self, head: ResponseHead, include_usage: bool, continuous_usage: bool) -> None:
        self._head = head
        self.include_usage = include_usage
        self.continuous = include_usage and continuous_usage  # each chunk carries the usage so far
        self._spoke: set[int] = set()  # choices whose role was sent
        self._start = b"data: " + orjson.dumps(head.fields("chat.completion.chunk"))[:-1] + b',"choices":['
        self._end = self._rest(None, None)
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # by choice: the bytes around the text of a plain chunk

    def chunk(self, index: int, piece: Piece, usage: Usage | None = None, timeline: Timeline | None = None) -> bytes:
        """The chunk of one token of the choice `index`. `usage` counts the tokens up to this one, if the client asked
        for continuous usage."""
        text, token_id, finish_reason = piece

        frame = self._frames.get(index)
        if frame is not None and finish_reason is None and timeline is None:
            before, after = frame
            if self._head.with_token_ids:
                return b'%b%b%b,"token_ids":[%b]}%b' % (
                    before, orjson.dumps(text), after, b"" if token_id is None else b"%d" % token_id, self._end
                )  # fmt: skip
            return before + orjson.dumps(text) + after

        if not self.continuous:
            self._frames[index] = self._frame(index)
        return self._any_chunk(index, piece, usage, timeline)

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """The bytes before and after the text of a chunk that only adds text."""
        before = self._start + b'{"index":%d,' % index + (b'"delta":{"content":' if self._head.is_chat else b'"text":')
        after = b"}" * self._head.is_chat + b',"logprobs":null,"finish_reason":null'
        return before, after if self._head.with_token_ids else after + b"}" + self._end

    def _any_chunk(self, index: int, piece: Piece, usage: Usage | None, timeline: Timeline | None) -> bytes:
        content, token_id, finish_reason = piece
        text: dict[str, Any] = {"text": content}
        if self._head.is_chat:
            role = {} if index in self._spoke else {"role": "assistant"}
            self._spoke.add(index)
            text = {"delta": role | {"content": content}}

        choice = self._head.choice(index, text, finish_reason, [] if token_id is None else [token_id])
        return self._start + orjson.dumps(choice) + self._rest(usage, timeline)

    def usage_chunk(self, usage: Usage, timeline: Timeline | None) -> bytes:
        """The chunk without choices that reports usage, after all others."""
        return self._start + self._rest(usage, timeline)

    def _rest(self, usage: Usage | None, timeline: Timeline | None) -> bytes:
        """The end of a chunk, after its choices: usage and time line, if they belong there."""
        last: dict[str, Any] = {"usage": None if usage is None else usage.to_json()} if self.include_usage else {}
        if timeline is not None:
            last["timeline"] = timeline
        return b"]" + (b"," + orjson.dumps(last)[1:] if last else b"}") + b"\n\n"


def event(body: dict[str, Any]) -> bytes:
    """One event, for an error in mid-stream. No DONE follows it."""
    return b"data: " + orjson.dumps(body) + b"\n\n"
