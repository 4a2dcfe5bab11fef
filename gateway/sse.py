"""Writes the chunks of a streamed answer, one for each token, as `data: {...}` lines.

The part of a chunk that never changes is encoded once.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from gateway.choice_text import Piece
from gateway.generation import Usage

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class ResponseHead:
    """The fields that all chunks of a response share. `created` is in seconds since 1970."""

    response_id: str
    created: int
    model: str
    is_chat: bool
    with_token_ids: bool


class ChunkWriter:
    """Writes the chunks of one response."""

    def __init__(self, head: ResponseHead, include_usage: bool, continuous_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self.continuous = include_usage and continuous_usage  # each chunk carries the usage so far
        self._spoke: set[int] = set()  # choices whose role was sent
        common = {
            "id": head.response_id,
            "object": "chat.completion.chunk" if head.is_chat else "text_completion",
            "created": head.created,
            "model": head.model,
        }
        self._start = b"data: " + orjson.dumps(common)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # by choice: the bytes around the text of a plain chunk

    def chunk(
        self, index: int, piece: Piece, usage: Usage | None = None, timeline: list[dict[str, Any]] | None = None
    ) -> bytes:
        """The chunk of one token of the choice `index`. `usage` counts the tokens up to this one; it is required if the
        client asked for continuous usage."""
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

    def _any_chunk(self, index: int, piece: Piece, usage: Usage | None, timeline: list[dict[str, Any]] | None) -> bytes:
        text, token_id, finish_reason = piece
        choice: dict[str, Any] = {"index": index}

        if self._head.is_chat:
            delta: dict[str, Any] = {"content": text}
            if index not in self._spoke:
                self._spoke.add(index)
                delta = {"role": "assistant", "content": text}
            choice["delta"] = delta
        else:
            choice["text"] = text

        choice["logprobs"] = None
        choice["finish_reason"] = finish_reason
        if self._head.with_token_ids:
            choice["token_ids"] = [] if token_id is None else [token_id]

        end = self._end
        if timeline is not None or self.continuous:
            last: dict[str, Any] = {}
            if self._include_usage:
                last["usage"] = usage.to_json() if self.continuous and usage is not None else None
            if timeline is not None:
                last["timeline"] = timeline
            end = b"]," + orjson.dumps(last)[1:] + b"\n\n"

        return self._start + orjson.dumps(choice) + end

    def usage_chunk(self, usage: Usage, timeline: list[dict[str, Any]] | None) -> bytes:
        """The chunk without choices that reports usage, after all others."""
        last: dict[str, Any] = {"usage": usage.to_json()}
        if timeline is not None:
            last["timeline"] = timeline
        return self._start + b"]," + orjson.dumps(last)[1:] + b"\n\n"


def event(body: dict[str, Any]) -> bytes:
    """One event, for an error in mid-stream. No DONE follows it."""
    return b"data: " + orjson.dumps(body) + b"\n\n"
