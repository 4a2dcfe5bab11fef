"""How OpenAI's API writes an answer: one body, or events.

An event has the tokens that one launch has drawn for a choice: one, or several with a draft. Tokens that reached the
gateway too early go out with those before them, in one event. The part of an event that never changes is encoded once.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.dialects.openai.score_shapes import LogprobWriter, PromptWriter
from gateway.generation.generation import Generation
from gateway.serving.answering import DONE
from gateway.serving.gathered import Gathered
from gateway.serving.parts import (
    CHARS,
    TEXTS,
    TOKENS,
    Kept,
    Later,
    ids_json,
    items_of,
    list_of,
    list_with_laters,
    parts_of,
    text_json,
)
from gateway.words.events import Batch, Step, Usage
from gateway.words.scored import ScoredToken

# OpenAI's messages always have these. Clients with strict types fail without them.
MESSAGE: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None, "annotations": []}
FIRST_DELTA: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
LONG_BATCH = 1024  # log-probabilities and pieces of text; the events of a batch with more are sent in parts
Fields = dict[str, Any]
Timeline = list[Fields]


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
        """The first fields of an event or body. `chat_object` says which of the two it is, in a chat."""
        kind = chat_object if self.is_chat else "text_completion"
        return {"id": self.response_id, "object": kind, "created": self.created, "model": self.model}

    def choice(
        self,
        index: int,
        text: dict[str, Any],
        finish_reason: str | None,
        token_ids: Sequence[int] | Later,
        *logprobs: Collection[ScoredToken],
    ) -> dict[str, Any]:
        """One choice. `text` is the field that holds its text."""
        scored = self.logprobs.write(*logprobs) if self.logprobs is not None else None
        choice = {"index": index, **text, "logprobs": scored, "finish_reason": finish_reason}
        return choice | {"token_ids": token_ids} if self.with_token_ids else choice

    def gathers(self) -> Gathered:
        """See Body."""
        return Gathered()

    def whole_choice(self, index: int, gathered: Gathered) -> dict[str, Any]:
        """One choice of a body."""
        content = text_json(gathered.texts, gathered.num_chars)
        text = {"message": MESSAGE | {"content": content}} if self.is_chat else {"text": content}
        token_ids = ids_json(gathered.token_ids) if self.with_token_ids else ()
        return self.choice(
            index, text, gathered.finish and gathered.finish.reason, token_ids, gathered.echoed, gathered.scored
        )

    def body(self, generation: Generation, gathered: Sequence[Gathered]) -> Fields:
        """See Body."""
        prompts = [self._prompt(generation, position) for position in range(len(generation.prompts.all))]

        def choices() -> Iterator[Fields]:
            for index, choice in enumerate(gathered):
                of_prompt = {} if self.is_chat else prompts[generation.prompts.place_of(index)]
                yield self.whole_choice(index, choice) | of_prompt

        is_short = (
            self.logprobs is None and sum(len(choice.texts) for choice in gathered) <= TEXTS
        )  # nearly every answer
        told = list(choices()) if is_short else list_with_laters(choices)
        body = self.fields("chat.completion") | {"choices": told, "usage": usage_fields(generation.usage)}
        timeline = generation.timeline()
        return body | (prompts[0] if self.is_chat else {}) | ({} if timeline is None else {"timeline": timeline})

    def _prompt(self, generation: Generation, position: int) -> Fields:
        """The field `prompt_logprobs`, if it is asked for."""
        prompt, writer = generation.prompts.all[position], self.prompt_logprobs
        part = generation.prompts.part(position * prompt.num_choices)
        if writer is None or part is None:
            return {}
        kind = Kept if prompt.num_choices > 1 and not self.is_chat else Later
        return {"prompt_logprobs": list_of([kind(lambda: items_of(lambda: writer.entries(part), TOKENS))])}


class EventWriter:
    """Writes the events of one response."""

    def __init__(self, head: ResponseHead, include_usage: bool, continuous_usage: bool) -> None:
        self._head = head
        self.include_usage = include_usage
        self.continuous = include_usage and continuous_usage  # each event carries the usage so far
        self._start = b"data: " + orjson.dumps(head.fields("chat.completion.chunk"))[:-1] + b',"choices":['
        self._end = self._rest(None, None)
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # by choice: the bytes around the text of a plain event
        self._num_sent = 0  # tokens of all choices

    @property
    def num_bytes(self) -> int:
        """See Body.events."""
        return 0

    def events(self, generation: Generation, batch: Batch) -> bytes | Iterator[bytes]:
        """See Body.events. The time line, if the client asks for it, is in the last event."""
        is_single = len(batch) == 1 and not (self.continuous or generation.times.with_timeline)  # nearly every batch
        if is_single and self._is_short(batch[0][1]):
            return self.event(*batch[0])

        blocks = self._blocks(generation, batch)
        return blocks if sum(self._size(step) for _, step in batch) > LONG_BATCH else b"".join(blocks)

    def _blocks(self, generation: Generation, batch: Batch) -> Iterator[bytes]:
        """The events one after another, long ones in blocks."""
        is_last = not self.include_usage and generation.is_drained
        for number, (index, step) in enumerate(batch, start=1):
            timeline = generation.timeline() if is_last and number == len(batch) else None
            self._num_sent += len(step.token_ids)
            usage = generation.usage._replace(completion=self._num_sent) if self.continuous else None
            if self._is_short(step):
                yield self.event(index, step, usage, timeline)
            else:
                yield self._start
                yield from parts_of(self._choice(index, step))
                yield self._rest(usage, timeline)

    def _size(self, step: Step) -> int:
        """As LONG_BATCH counts."""
        per_token = 1 if self._head.logprobs is None else 1 + self._head.logprobs.num_top
        return 1 + len(step.text) * LONG_BATCH // CHARS + per_token * len(step.shown)

    @staticmethod
    def _is_short(step: Step) -> bool:
        return len(step.shown) <= TOKENS and len(step.text) <= CHARS

    def last(self, generation: Generation) -> bytes:
        """See Body.events."""
        if not self.include_usage:
            return DONE
        return self.usage_event(generation.usage, generation.timeline()) + DONE

    def event(self, index: int, step: Step, usage: Usage | None = None, timeline: Timeline | None = None) -> bytes:
        """The event of one Step of the choice `index`. `usage` counts the tokens up to its last one, if the client
        asked for continuous usage."""
        frame = self._frames.get(index)
        is_plain = step.finish is None and timeline is None and usage is None and not step.shown
        if frame is not None and is_plain:
            before, after = frame
            if self._head.with_token_ids:
                ids = orjson.dumps(step.token_ids)
                return b'%b%b%b,"token_ids":%b}%b' % (before, orjson.dumps(step.text), after, ids, self._end)
            return before + orjson.dumps(step.text) + after

        return self._start + orjson.dumps(self._choice(index, step)) + self._rest(usage, timeline)

    def _choice(self, index: int, step: Step) -> Fields:
        """The choice of an event; a long text or a long list in it is a Later."""
        text, finish_reason = step.text, step.finish and step.finish.reason
        delta: Fields = {}
        if index not in self._frames:
            delta, self._frames[index] = FIRST_DELTA, self._frame(index)

        told = text_json((text,), len(text))
        content = {"delta": delta | {"content": told}} if self._head.is_chat else {"text": told}
        choice = self._head.choice(index, content, finish_reason, step.token_ids, step.shown)
        if not step.shown:
            choice["logprobs"] = None  # nothing to tell in this event
        return choice

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """The bytes before and after the text of an event that only adds text."""
        before = self._start + b'{"index":%d,' % index + (b'"delta":{"content":' if self._head.is_chat else b'"text":')
        after = b"}" * self._head.is_chat + b',"logprobs":null,"finish_reason":null'
        return before, after if self._head.with_token_ids else after + b"}" + self._end

    def usage_event(self, usage: Usage, timeline: Timeline | None) -> bytes:
        """The event without choices that reports usage, after all others."""
        return self._start + self._rest(usage, timeline)

    def _rest(self, usage: Usage | None, timeline: Timeline | None) -> bytes:
        """The end of an event, after its choices: usage and time line, if they belong there."""
        last: dict[str, Any] = {"usage": usage and usage_fields(usage)} if self.include_usage else {}
        if timeline is not None:
            last["timeline"] = timeline
        return b"]" + (b"," + orjson.dumps(last)[1:] if last else b"}") + b"\n\n"


def usage_fields(usage: Usage) -> Fields:
    """The usage object of OpenAI's API."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
