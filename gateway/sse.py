"""Chunks of a streamed answer as bytes, `data: {...}` lines and nothing else; one chunk for each token.

The part of a chunk that never changes is encoded once. What it does not know: when chunks are sent.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from gateway.choice_text import Piece
from gateway.generation import Usage

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class ResponseHead:
    """What all chunks, or the one body, of a response share. `created` is in seconds since 1970."""

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
        self._continuous = include_usage and continuous_usage
        self._spoke: set[int] = set()  # choices whose role was sent
        common = {
            "id": head.response_id,
            "object": "chat.completion.chunk" if head.is_chat else "text_completion",
            "created": head.created,
            "model": head.model,
        }
        self._start = b"data: " + orjson.dumps(common)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def chunk(self, index: int, piece: Piece, usage: Usage, timeline: list[dict[str, Any]] | None = None) -> bytes:
        """The chunk of one token of the choice `index`. `usage` counts the tokens up to this one."""
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
        if timeline is not None or self._continuous:
            last: dict[str, Any] = {}
            if self._include_usage:
                last["usage"] = usage.to_json() if self._continuous else None
            if timeline is not None:
                last["timeline"] = timeline
            end = b"]," + orjson.dumps(last)[1:] + b"\n\n"
        return self._start + orjson.dumps(choice) + end

    def usage_chunk(self, usage: Usage, timeline: list[dict[str, Any]] | None) -> bytes:
        """The chunk without choices that clients may ask for, after all others."""
        last: dict[str, Any] = {"usage": usage.to_json()}
        if timeline is not None:
            last["timeline"] = timeline
        return self._start + b"]," + orjson.dumps(last)[1:] + b"\n\n"


def event(body: dict[str, Any]) -> bytes:
    """One event, for an error in mid-stream. No DONE follows it."""
    return b"data: " + orjson.dumps(body) + b"\n\n"
