"""How SGLang's native API writes an answer: each event of a stream has all text and tokens of a choice so far.

What a choice has is encoded once: an event joins what is encoded already.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from gateway.answering import DONE
from gateway.choice_text import Piece
from gateway.generation import ABORT, Batch, Generation
from gateway.logprobs import finite
from gateway.native_schemas import ONLY_OUTPUTS
from gateway.prompt_part import PromptPart, in_blocks
from protocol.logprobs import TokenLogprob

WEIGHT_VERSION = "default"  # weights never change while a worker runs; also in /model_info
Fields = dict[str, Any]


class _Growing:
    """A JSON text or list that grows. `marks`: what opens and closes it."""

    def __init__(self, marks: bytes) -> None:
        self._open, self._close = marks[:1], marks[1:]
        self._inner = bytearray()

    def add(self, value: str | Sequence[Any]) -> None:
        """Appends text to a text, or items to a list."""
        added = orjson.dumps(value)[1:-1]
        if self._inner and added and self._close == b"]":
            self._inner += b","
        self._inner += added

    @property
    def whole(self) -> orjson.Fragment:
        """All of it."""
        return orjson.Fragment(self._open + self._inner + self._close)


def _text() -> _Growing:
    return _Growing(b'""')


def _list() -> _Growing:
    return _Growing(b"[]")


@dataclass
class _Output:
    """One choice so far. `num_sent`: tokens in its last event; -1 before the first one."""

    text: _Growing = field(default_factory=_text)
    token_ids: _Growing = field(default_factory=_list)
    logprobs: _Growing = field(default_factory=_list)
    top_logprobs: _Growing = field(default_factory=_list)
    num_tokens: int = 0
    last_token: int | None = None
    num_sent: int = -1


@dataclass(frozen=True)
class Wanted:
    """What the choices of one prompt are told with. `num_top`: how many of the likeliest tokens their log-probabilities
    have; None: they have none. `start_len`: the first token of the prompt that is told with them. `interval`: how many
    new tokens an event of a stream has at least."""

    num_top: int | None
    start_len: int
    interval: int


class NativeAnswer:
    """A Body and Chunks; see answering.py.

    `is_list`: the answer is a list of choices. `names`: the id of each choice. `wanted`: of each prompt. `text_of`: the
    text of a token, if log-probabilities name it.
    """

    def __init__(
        self, *, is_list: bool, names: Sequence[str], wanted: Sequence[Wanted], text_of: Callable[[int], str | None]
    ) -> None:
        self._is_list, self._names, self._wanted, self._text_of = is_list, names, wanted, text_of
        self._outputs = [_Output() for _ in names]
        self._prompts: dict[int, Fields] = {}  # by place, what is told of the prompt's tokens, encoded

    def body(self, generation: Generation, found: list[list[Piece]]) -> Any:
        """An object for one choice; a list of them for a list of prompts, or for several choices."""
        bodies: list[Fields] = []
        for index, pieces in enumerate(found):
            for piece in pieces:
                self._take(index, piece)
            bodies.append(self._tell(generation, index, pieces[-1].finish_reason))
        _add_timeline(generation, bodies[-1])
        return bodies if self._is_list else bodies[0]

    def chunks(self, generation: Generation, batch: Batch) -> bytes:
        """An event for each piece, or for several pieces of a choice that has fewer tokens than an event may have."""
        events: list[bytes] = []
        for place, (index, piece) in enumerate(batch, start=1):
            self._take(index, piece)
            output = self._outputs[index]
            has_enough = (
                output.num_tokens - output.num_sent >= self._wanted[generation.prompts.place_of(index)].interval
            )
            if piece.finish_reason is None and output.num_sent >= 0 and not has_enough:
                continue

            output.num_sent = output.num_tokens
            told = self._tell(generation, index, piece.finish_reason)
            if self._is_list:
                told["index"] = index
            if place == len(batch) and generation.is_drained:
                _add_timeline(generation, told)
            events.append(b"data: " + orjson.dumps(told) + b"\n\n")
        return b"".join(events)

    def last(self, generation: Generation) -> bytes:
        """See Chunks."""
        return DONE

    def _take(self, index: int, piece: Piece) -> None:
        output = self._outputs[index]
        output.text.add(piece.text)
        output.token_ids.add(piece.token_ids)
        output.num_tokens += len(piece.token_ids)
        if piece.token_ids:
            output.last_token = piece.token_ids[-1]
        if piece.scores:
            scored = list(zip(piece.token_ids, piece.scores, strict=True))
            output.logprobs.add([self._pair(token_id, each.logprob) for token_id, each in scored])
            output.top_logprobs.add([[self._pair(*top) for top in each.top] for _, each in scored])

    def _pair(self, token_id: int, logprob: float) -> list[Any]:
        """[log-probability, token id, its text or null]."""
        return [finite(logprob), token_id, self._text_of(token_id)]

    def _tell(self, generation: Generation, index: int, finish_reason: str | None) -> Fields:
        """The choice so far."""
        output, place = self._outputs[index], generation.prompts.place_of(index)
        num_top = self._wanted[place].num_top
        num_prompt, num_cached = generation.prompts.tokens_of(index)
        meta: Fields = {
            "id": self._names[index],
            "finish_reason": self._finish(generation, index, finish_reason),
            "prompt_tokens": num_prompt,
            "weight_version": WEIGHT_VERSION,
            "completion_tokens": output.num_tokens,
            "cached_tokens": num_cached,
        }
        if num_top is not None:
            if place not in self._prompts:
                self._prompts[place] = self._of_prompt(self._wanted[place], generation.prompts.part(index))
            meta |= {**self._prompts[place], "output_token_logprobs": output.logprobs.whole}
            if num_top:
                meta["output_top_logprobs"] = output.top_logprobs.whole
        if finish_reason is not None:
            meta["e2e_latency"] = generation.times.seconds
        return {"text": output.text.whole, "output_ids": output.token_ids.whole, "meta_info": meta}

    def _of_prompt(self, wanted: Wanted, part: PromptPart | None) -> Fields:
        """The tokens of a prompt from `start_len` on. The first of them has no log-probability: it is null."""
        is_told = part is not None and wanted.start_len != ONLY_OUTPUTS

        def told(write: Callable[[int, TokenLogprob | None], Any]) -> orjson.Fragment:
            assert part is not None
            pairs = zip(part.token_ids, part.tokens(wanted.num_top or 0), strict=True)
            return in_blocks(write(*pair) for pair in islice(pairs, wanted.start_len, None))

        found: Fields = {"input_token_logprobs": told(self._token) if is_told else []}
        return found | ({"input_top_logprobs": told(self._top) if is_told else []} if wanted.num_top else {})

    def _token(self, token_id: int, scored: TokenLogprob | None) -> list[Any]:
        return [None, token_id, self._text_of(token_id)] if scored is None else self._pair(token_id, scored.logprob)

    def _top(self, _: int, scored: TokenLogprob | None) -> list[list[Any]] | None:
        return None if scored is None else [self._pair(*top) for top in scored.top]

    def _finish(self, generation: Generation, index: int, reason: str | None) -> Fields | None:
        """Why a choice has ended, and by what."""
        if reason is None:
            return None
        if reason == "length":
            return {"type": "length", "length": self._outputs[index].num_tokens}
        if reason == ABORT:
            return {"type": ABORT, "message": "Aborted"}
        cut_by = generation.cut_by(index)
        return {"type": "stop", "matched": self._outputs[index].last_token if cut_by is None else cut_by}


def _add_timeline(generation: Generation, told: Fields) -> None:
    """Adds the time line to the last choice that is told, if the client asks for it."""
    timeline = generation.timeline()
    if timeline is not None:
        told["meta_info"]["timeline"] = timeline
