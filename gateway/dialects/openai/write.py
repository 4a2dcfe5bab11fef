"""How OpenAI's API writes an answer, in what completions and chats share: one body, or events.

write_completion.py and write_chat.py say how each of the two writes a choice: its Form. An event has the tokens that
one launch has drawn for a choice: one, or several with a draft. Tokens that reached the gateway too early go out with
those before them, in one event. The part of an event that never changes is encoded once.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from gateway.dialects.openai.score_shapes import LogprobWriter, PromptWriter
from gateway.generation.generation import Generation
from gateway.http.errors import error_event
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
)
from gateway.words.events import Batch, Finish, Reason, Step, Usage
from gateway.words.scored import ScoredToken
from protocol.errors import BatonError

LONG_BATCH = 1024  # log-probabilities and pieces of text; the events of a batch with more are sent in parts
Fields = dict[str, Any]
Timeline = list[Fields]


class Form(Protocol):
    """How a route writes a choice."""

    @property
    def body_object(self) -> str:
        """The field `object` of a body."""
        ...

    @property
    def event_object(self) -> str:
        """The field `object` of an event."""
        ...

    @property
    def around_text(self) -> tuple[bytes, bytes]:
        """The bytes before and after the text of a choice, in an event that only adds text."""
        ...

    def whole(self, gathered: Gathered) -> Fields:
        """The fields of a body's choice that have what it says. Long texts are Laters."""
        ...

    def added(self, step: Step, *, is_first: bool) -> Fields:
        """The same of an event's choice. `is_first`: of the choice's first event."""
        ...

    def of_choice(self, prompt: Fields) -> Fields:
        """What a body's choice tells of its prompt. `prompt`: all that is asked for."""
        ...

    def of_body(self, prompt: Fields) -> Fields:
        """What a body tells of its first prompt, beside its choices."""
        ...


@dataclass(frozen=True)
class Head:
    """What all choices of a response share. `created` is in seconds since 1970."""

    response_id: str
    created: int
    model: str
    form: Form
    with_token_ids: bool = False
    logprobs: LogprobWriter | None = None  # None: nobody asks for them
    prompt_logprobs: PromptWriter | None = None  # the same of the field of this name

    def fields(self, kind: str) -> Fields:
        """The first fields of an event or body."""
        return {"id": self.response_id, "object": kind, "created": self.created, "model": self.model}

    def choice(
        self,
        index: int,
        content: Fields,
        finish: Finish | None,
        token_ids: Sequence[int] | Later,
        *scored: Collection[ScoredToken],
    ) -> Fields:
        """One choice. `content`: the fields that have what it says."""
        logprobs = self.logprobs.write(*scored) if self.logprobs is not None else None
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": reason_of(finish)}
        return choice | {"token_ids": token_ids} if self.with_token_ids else choice


@dataclass(frozen=True)
class BodyWriter:
    """Writes an answer that is not streamed; a Body of answering.py."""

    head: Head

    def gathers(self) -> Gathered:
        """See Body."""
        return Gathered()

    def body(self, generation: Generation, gathered: Sequence[Gathered]) -> Fields:
        """See Body."""
        head, form = self.head, self.head.form
        prompts = [self._prompt(generation, position) for position in range(len(generation.prompts.all))]

        def choices() -> Iterator[Fields]:
            for index, choice in enumerate(gathered):
                of_prompt = form.of_choice(prompts[generation.prompts.place_of(index)])
                yield self._choice(index, choice) | of_prompt

        num_pieces = sum(choice.num_pieces for choice in gathered)
        is_short = head.logprobs is None and num_pieces <= TEXTS  # nearly every answer
        told = list(choices()) if is_short else list_with_laters(choices)
        body = head.fields(form.body_object) | {"choices": told, "usage": usage_fields(generation.usage)}
        timeline = generation.timeline()
        return body | form.of_body(prompts[0]) | ({} if timeline is None else {"timeline": timeline})

    def _choice(self, index: int, gathered: Gathered) -> Fields:
        token_ids = ids_json(gathered.token_ids) if self.head.with_token_ids else ()
        content = self.head.form.whole(gathered)
        return self.head.choice(index, content, gathered.finish, token_ids, gathered.echoed, gathered.scored)

    def _prompt(self, generation: Generation, position: int) -> Fields:
        """The field `prompt_logprobs`, if it is asked for."""
        prompt, writer = generation.prompts.all[position], self.head.prompt_logprobs
        part = generation.prompts.part(position * prompt.num_choices)
        if writer is None or part is None:
            return {}
        kind = Kept if prompt.num_choices > 1 else Later
        return {"prompt_logprobs": list_of([kind(lambda: items_of(lambda: writer.entries(part), TOKENS))])}


class EventWriter:
    """Writes the events of one response; Chunks of answering.py. `continuous`: each has the usage so far."""

    def __init__(self, head: Head, include_usage: bool, continuous_usage: bool) -> None:
        self._head, self._form = head, head.form
        self._includes_usage = include_usage
        self._continuous = include_usage and continuous_usage
        self._start = b"data: " + orjson.dumps(head.fields(head.form.event_object))[:-1] + b',"choices":['
        self._end = self._rest(None, None)
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # by choice: the bytes around the text of a plain event
        self._num_sent = 0  # tokens of all choices

    @property
    def num_bytes(self) -> int:
        """See Chunks."""
        return 0

    def events(self, generation: Generation, batch: Batch) -> bytes | Iterator[bytes]:
        """See Chunks. The time line, if the client asks for it, is in the last event."""
        if len(batch) == 1 and not (self._continuous or generation.times.with_timeline):  # nearly every batch
            index, step = batch[0]
            text = step.only_text
            if text is not None and len(text) <= CHARS and index in self._frames:
                return self._plain(index, text, step.token_ids)

        blocks = self._blocks(generation, batch)
        return blocks if sum(self._size(step) for _, step in batch) > LONG_BATCH else b"".join(blocks)

    def last(self, generation: Generation) -> bytes:
        """See Chunks."""
        if not self._includes_usage:
            return DONE
        return self._start + self._rest(generation.usage, generation.timeline()) + DONE

    def failed(self, error: BatonError) -> bytes:
        """See Chunks."""
        return error_event(error)

    def _blocks(self, generation: Generation, batch: Batch) -> Iterator[bytes]:
        """The events one after another, long ones in blocks."""
        is_last = not self._includes_usage and generation.is_drained
        for number, (index, step) in enumerate(batch, start=1):
            timeline = generation.timeline() if is_last and number == len(batch) else None
            self._num_sent += len(step.token_ids)
            usage = self._usage(generation.usage) if self._continuous else None
            yield from self._event(index, step, usage, timeline)

    def _event(self, index: int, step: Step, usage: Usage | None, timeline: Timeline | None) -> Iterator[bytes]:
        """The event of one Step of a choice. `usage` counts the tokens up to its last one."""
        is_long = len(step.shown) > TOKENS or step.num_chars > CHARS
        text = step.only_text
        if text is not None and index in self._frames and not (is_long or usage or timeline):
            yield self._plain(index, text, step.token_ids)
            return

        choice = self._choice(index, step)
        yield self._start
        yield from parts_of(choice) if is_long else (orjson.dumps(choice),)
        yield self._rest(usage, timeline)

    def _usage(self, usage: Usage) -> Usage:
        """The usage up to what was sent."""
        return usage._replace(completion=self._num_sent, reasoning=min(usage.reasoning, self._num_sent))

    def _size(self, step: Step) -> int:
        """As LONG_BATCH counts."""
        per_token = 1 if self._head.logprobs is None else 1 + self._head.logprobs.num_top
        return 1 + step.num_chars * LONG_BATCH // CHARS + per_token * len(step.shown)

    def _choice(self, index: int, step: Step) -> Fields:
        """The choice of an event; a long text or a long list in it is a Later."""
        is_first = index not in self._frames
        if is_first:
            self._frames[index] = self._frame(index)
        choice = self._head.choice(
            index, self._form.added(step, is_first=is_first), step.finish, step.token_ids, step.shown
        )
        if not step.shown:
            choice["logprobs"] = None  # nothing to tell in this event
        return choice

    def _plain(self, index: int, text: str, token_ids: Sequence[int]) -> bytes:
        """An event that only adds text, behind the first one of its choice."""
        before, after = self._frames[index]
        if self._head.with_token_ids:
            return b'%b%b%b,"token_ids":%b}%b' % (before, orjson.dumps(text), after, orjson.dumps(token_ids), self._end)
        return before + orjson.dumps(text) + after

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """The bytes before and after the text of an event that only adds text."""
        before, after = self._form.around_text
        before = self._start + b'{"index":%d,' % index + before
        after += b',"logprobs":null,"finish_reason":null'
        return before, after if self._head.with_token_ids else after + b"}" + self._end

    def _rest(self, usage: Usage | None, timeline: Timeline | None) -> bytes:
        """The end of an event, after its choices: usage and time line, if they belong there."""
        last: Fields = {"usage": usage and usage_fields(usage)} if self._includes_usage else {}
        if timeline is not None:
            last["timeline"] = timeline
        return b"]" + (b"," + orjson.dumps(last)[1:] if last else b"}") + b"\n\n"


def reason_of(finish: Finish | None) -> str | None:
    """The field `finish_reason`."""
    if finish is None:
        return None
    return "tool_calls" if finish.reason is Reason.CALLS else finish.reason.value


def usage_fields(usage: Usage) -> Fields:
    """The usage object of OpenAI's API."""
    fields: Fields = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
    if usage.reasoning:
        fields["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return fields
