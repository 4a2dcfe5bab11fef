"""How SGLang's native API writes an answer: each event of a stream has all text and tokens of a choice so far.

What a choice of a stream has is encoded once: an event joins what is encoded already. A long event has what came
together with it or shortly after: so the bytes of a stream do not grow with the square of its tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import orjson

from gateway.dialects.sglang.fields import ONLY_OUTPUTS
from gateway.generation.generation import Generation
from gateway.http.errors import error_event
from gateway.routing.prompt_scores import PromptPart
from gateway.serving.answering import DONE
from gateway.serving.gathered import Gathered
from gateway.serving.parts import (
    PART_BYTES,
    TOKENS,
    Kept,
    Later,
    finite,
    ids_json,
    in_blocks,
    items_of,
    list_of,
    list_with_laters,
    parts_of,
    text_json,
)
from gateway.words.events import Batch, Finish, Reason, Step
from protocol.errors import BatonError
from protocol.logprobs import TokenLogprob

WEIGHT_VERSION = "default"  # weights never change while a worker runs; also in /model_info
LONG_EVENT: Final = 256 * 1024  # bytes; the next event of the choice comes when it has grown by a part of them
GROWTH: Final = 256  # that part: a 256th
SCORE_BYTES: Final = 48  # of one log-probability, about
Fields = dict[str, Any]


class _Growing:
    """A JSON text or list that grows. `marks`: what opens and closes it."""

    def __init__(self, marks: bytes) -> None:
        self._open, self._close = marks[:1], marks[1:]
        self._inner = bytearray()

    def __len__(self) -> int:
        return len(self._inner)

    def add(self, value: str | Sequence[Any]) -> None:
        """Appends text to a text, or items to a list."""
        added = orjson.dumps(value)[1:-1]
        if self._inner and added and self._close == b"]":
            self._inner += b","
        self._inner += added

    @property
    def whole(self) -> orjson.Fragment | Later:
        """All of it. A Later is read before more is added."""
        if len(self) <= PART_BYTES // 4:  # an event has four of them
            return orjson.Fragment(self._open + self._inner + self._close)
        return Later(self._blocks)

    def _blocks(self) -> Iterator[bytes]:
        yield self._open
        for start in range(0, len(self), PART_BYTES):
            yield bytes(self._inner[start : start + PART_BYTES])
        yield self._close


def _text() -> _Growing:
    return _Growing(b'""')


def _list() -> _Growing:
    return _Growing(b"[]")


class _Told(NamedTuple):
    """One choice of an answer, as JSON values."""

    text: Any
    token_ids: Any
    logprobs: Any
    top_logprobs: Any
    num_tokens: int


@dataclass
class _Output:
    """One choice of a stream so far. Of its last event: `num_sent` tokens, -1 before the first one; `event_bytes` in
    all, `bytes_told` of them what the choice had."""

    text: _Growing = field(default_factory=_text)
    token_ids: _Growing = field(default_factory=_list)
    logprobs: _Growing = field(default_factory=_list)
    top_logprobs: _Growing = field(default_factory=_list)
    num_tokens: int = 0
    num_sent: int = -1
    bytes_told: int = 0
    event_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        """The values that are encoded."""
        return len(self.text) + len(self.token_ids) + len(self.logprobs) + len(self.top_logprobs)

    @property
    def told(self) -> _Told:
        """All of it."""
        return _Told(
            self.text.whole,
            self.token_ids.whole,
            self.logprobs.whole,
            self.top_logprobs.whole,
            self.num_tokens,
        )


@dataclass(frozen=True)
class Wanted:
    """What the choices of one prompt are told with. `num_top`: how many of the likeliest tokens their log-probabilities
    have; None: they have none. `start_len`: the first token of the prompt that is told with them. `interval`: how many
    new tokens an event of a stream has at least."""

    num_top: int | None
    start_len: int
    interval: int

    @property
    def tells_prompt(self) -> bool:
        """Whether they are told with the prompt's tokens, too."""
        return self.num_top is not None and self.start_len != ONLY_OUTPUTS


class NativeAnswer:
    """A Body and Chunks; see answering.py.

    `is_list`: the answer is a list of choices. `names`: the id of each choice. `wanted`: of each prompt. `text_of`: the
    text of a token, if log-probabilities name it.
    """

    def __init__(
        self, *, is_list: bool, names: Sequence[str], wanted: Sequence[Wanted], text_of: Callable[[int], str | None]
    ) -> None:
        self._is_list, self._names, self._wanted, self._text_of = is_list, names, wanted, text_of
        self._outputs: dict[int, _Output] = {}  # of a stream, by choice
        self._prompts: dict[int, Fields] = {}  # by place, what is told of the prompt's tokens
        self.num_bytes = 0  # of all outputs

    def gathers(self) -> Gathered:
        """See Body."""
        return Gathered(tells_all=True)

    def body(self, generation: Generation, of_choices: Sequence[Gathered]) -> Any:
        """An object for one choice; a list of them for a list of prompts, or for several choices."""

        def whole(index: int) -> Fields:
            gathered = of_choices[index]
            body = self._tell(generation, index, gathered.finish, self._whole(gathered))
            if index == len(of_choices) - 1:
                _add_timeline(generation, body)
            return body

        return list_with_laters(lambda: map(whole, range(len(of_choices)))) if self._is_list else whole(0)

    def _whole(self, gathered: Gathered) -> _Told:
        """What a choice has at the end."""
        tokens, ids = gathered.scored, gathered.token_ids
        return _Told(
            text_json(gathered.text.pieces, gathered.text.num_chars),
            ids_json(ids),
            in_blocks(lambda: (self._pair(token.token_id, _score(token.scored).logprob) for token in tokens), TOKENS),
            in_blocks(lambda: ([self._pair(*top) for top in _score(token.scored).top] for token in tokens), TOKENS),
            len(ids),
        )

    def events(self, generation: Generation, batch: Batch) -> bytes | Iterator[bytes]:
        """An event for each Step, or for several Steps of a choice that has fewer tokens than an event may have."""
        blocks = self._blocks(generation, batch)
        return blocks if self._is_long(generation, batch) else b"".join(blocks)

    def last(self, generation: Generation) -> bytes:
        """See Chunks."""
        return DONE

    def failed(self, error: BatonError) -> bytes:
        """See Chunks."""
        return error_event(error)

    def _is_long(self, generation: Generation, batch: Batch) -> bool:
        """Whether the events of a batch may have more bytes than a part."""
        num_bytes = 0
        for index, step in batch:
            wanted, output = self._wanted[generation.prompts.place_of(index)], self._outputs.get(index)
            num_tokens = len(step.token_ids)
            if wanted.tells_prompt:
                num_tokens += len(generation.prompts.of(index).token_ids)
            num_bytes += SCORE_BYTES * num_tokens * (1 + (wanted.num_top or 0)) + len(step.text)
            num_bytes += 0 if output is None else output.num_bytes
        return num_bytes > PART_BYTES

    def _blocks(self, generation: Generation, batch: Batch) -> Iterator[bytes]:
        """The events one after another, in blocks."""
        last_places = {index: index_in_batch for index_in_batch, (index, _) in enumerate(batch)}
        for index_in_batch, (index, step) in enumerate(batch):
            output = self._outputs.setdefault(index, _Output())
            prompt = generation.prompts.place_of(index)
            self._take(output, step, self._wanted[prompt])
            is_long = max(output.num_bytes, output.event_bytes) > PART_BYTES
            waits = is_long and index_in_batch < last_places[index]  # for what has come together with it
            if step.finish is None and (waits or not self._is_due(output, self._wanted[prompt])):
                continue

            output.num_sent, output.bytes_told, output.event_bytes = output.num_tokens, output.num_bytes, 0
            told = self._tell(generation, index, step.finish, output.told)
            if self._is_list:
                told["index"] = index
            if index_in_batch == len(batch) - 1 and generation.is_drained:
                _add_timeline(generation, told)
            for block in chain((b"data: ",), parts_of(told), (b"\n\n",)):
                output.event_bytes += len(block)
                yield block

    @staticmethod
    def _is_due(output: _Output, wanted: Wanted) -> bool:
        """Whether a choice that goes on has an event now."""
        if output.num_sent < 0:
            return True
        least = output.event_bytes // GROWTH if output.event_bytes > LONG_EVENT else 0
        return output.num_tokens - output.num_sent >= wanted.interval and output.num_bytes - output.bytes_told >= least

    def _take(self, output: _Output, step: Step, wanted: Wanted) -> None:
        num_before = output.num_bytes
        output.text.add(step.text)
        output.token_ids.add(step.token_ids)
        output.num_tokens += len(step.token_ids)
        if step.scores:
            scored = list(zip(step.token_ids, step.scores, strict=True))
            output.logprobs.add([self._pair(token_id, score.logprob) for token_id, score in scored])
            if wanted.num_top:
                output.top_logprobs.add([[self._pair(*top) for top in score.top] for _, score in scored])
        self.num_bytes += output.num_bytes - num_before

    def _pair(self, token_id: int, logprob: float) -> list[Any]:
        """[log-probability, token id, its text or null]."""
        return [finite(logprob), token_id, self._text_of(token_id)]

    def _tell(self, generation: Generation, index: int, finish: Finish | None, told: _Told) -> Fields:
        """The choice so far."""
        position = generation.prompts.place_of(index)
        num_top = self._wanted[position].num_top
        num_prompt, num_cached = generation.prompts.tokens_of(index)
        meta: Fields = {
            "id": self._names[index],
            "finish_reason": _finish_reason(finish, told.num_tokens),
            "prompt_tokens": num_prompt,
            "weight_version": WEIGHT_VERSION,
            "completion_tokens": told.num_tokens,
            "cached_tokens": num_cached,
        }
        if num_top is not None:
            if position not in self._prompts:
                self._prompts[position] = self._of_prompt(self._wanted[position], generation.prompts.part(index))
            meta |= {**self._prompts[position], "output_token_logprobs": told.logprobs}
            if num_top:
                meta["output_top_logprobs"] = told.top_logprobs
        if finish is not None:
            meta["e2e_latency"] = generation.times.seconds
        return {"text": told.text, "output_ids": told.token_ids, "meta_info": meta}

    def _of_prompt(self, wanted: Wanted, part: PromptPart | None) -> Fields:
        """The tokens of a prompt from `start_len` on. The first of them has no log-probability: it is null."""

        def told(write: Callable[[int, TokenLogprob | None], Any]) -> list[Any] | Later:
            if part is None or not wanted.tells_prompt:
                return []

            def items() -> Iterator[Any]:
                pairs = zip(part.token_ids, part.tokens(wanted.num_top or 0), strict=True)
                return (write(*pair) for pair in islice(pairs, wanted.start_len, None))

            kind = Kept if self._outputs or len(self._names) > len(self._wanted) else Later  # Kept: told several times
            return list_of([kind(lambda: items_of(items, TOKENS))])

        fields: Fields = {"input_token_logprobs": told(self._token)}
        return fields | ({"input_top_logprobs": told(self._top)} if wanted.num_top else {})

    def _token(self, token_id: int, scored: TokenLogprob | None) -> list[Any]:
        return [None, token_id, self._text_of(token_id)] if scored is None else self._pair(token_id, scored.logprob)

    def _top(self, _: int, scored: TokenLogprob | None) -> list[list[Any]] | None:
        return None if scored is None else [self._pair(*top) for top in scored.top]


def _score(scored: TokenLogprob | None) -> TokenLogprob:
    assert scored is not None, "a token of the answer"
    return scored


def _finish_reason(finish: Finish | None, num_tokens: int) -> Fields | None:
    """Why a choice has ended, and by what."""
    if finish is None:
        return None
    if finish.reason is Reason.LENGTH:
        return {"type": "length", "length": num_tokens}
    if finish.reason is Reason.ABORT:
        return {"type": "abort", "message": "Aborted"}
    return {"type": "stop", "matched": finish.matched}


def _add_timeline(generation: Generation, told: Fields) -> None:
    """Adds the time line to the last choice that is told, if the client asks for it."""
    timeline = generation.timeline()
    if timeline is not None:
        told["meta_info"]["timeline"] = timeline
