"""One client request while it is answered: its prompts at the workers, the texts of its choices, its times.

Pieces of text are collected here between two turns of the loop and taken in batches.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from gateway.choice_text import ChoiceText, Detokenizer, Piece
from gateway.dispatch import GATEWAY, Dispatch
from gateway.metrics import Metrics
from gateway.prompt_part import Echo, EchoedTokens, PromptPart
from gateway.requests import Delivery, RequestRecord
from gateway.translate import Prompt
from protocol.errors import BadRequest, BatonError, InternalError, Overloaded
from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import FinishReason
from protocol.worker_facts import Stamp
from runtime.clock import Clock
from runtime.log import get_log

log = get_log("gateway.generation")
TURN_TOKENS = 64 * 1024  # tokens of prompts that are assigned in one turn of the loop
MAX_LOGGED = 8  # prompts that the log line of one call names
CANCELLED = "cancelled"  # the outcome when the client has left
ABORT = "abort"  # the finish reason of a choice that the client has aborted by another request, as vLLM names it
Batch = list[tuple[int, Piece]]  # (index of the choice in the response, what it gained)


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The usage object of OpenAI's API. It counts a whole client request: a prompt counts once, whatever n is."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class Times:
    """What is measured of one client request: latencies for the metrics, stamps for the time line. In seconds of
    `clock`."""

    def __init__(self, clock: Clock, metrics: Metrics, received_at: float, with_timeline: bool = False) -> None:
        self.with_timeline = with_timeline  # the client asks for it
        self._clock, self._metrics = clock, metrics
        self._received_at = received_at
        self._stamps: list[Stamp] = []
        self._first_token_at: dict[int, float] = {}  # by choice, the earliest first
        self._last_token_at: dict[int, float] = {}  # by choice
        self.stamp("received", received_at)

    @property
    def seconds(self) -> float:
        """Since the request arrived."""
        return self._clock.now() - self._received_at

    def stamp(self, name: str, at: float | None = None) -> None:
        """Adds a stamp to the time line."""
        self._stamps.append(Stamp(name, self._clock.now() if at is None else at, GATEWAY))

    def assigned(self, prompts: Sequence[Prompt]) -> None:
        """Every prompt is at its worker."""
        for prompt in prompts:
            self._metrics.num_prompt_tokens += len(prompt.token_ids)
            self._metrics.prompt_length.observe(len(prompt.token_ids))
        self._metrics.gateway_request_s.observe(self.seconds)

    def tokens(self, index: int, num_tokens: int) -> None:
        """A choice got tokens. Those that arrive together share the time since the previous ones equally."""
        if not num_tokens:
            return
        now, metrics = self._clock.now(), self._metrics
        metrics.num_generation_tokens += num_tokens

        last, self._last_token_at[index] = self._last_token_at.get(index), now
        if last is not None:
            metrics.inter_token_latency_s.observe((now - last) / num_tokens, num_tokens)
            return

        self._first_token_at[index] = now
        if len(self._first_token_at) == 1:
            self.stamp("first token out", now)
            metrics.time_to_first_token_s.observe(now - self._received_at)

    def first_chunk_written(self) -> None:
        """The first chunk was written to the connection."""
        if self._first_token_at:
            first = next(iter(self._first_token_at.values()))
            self._metrics.gateway_first_token_s.observe(self._clock.now() - first)

    def choice_ended(self, index: int, text: ChoiceText) -> None:
        """A choice has all its tokens."""
        metrics = self._metrics
        metrics.finished.labels(text.finish_reason).inc()
        metrics.output_length.observe(text.num_tokens)
        if index not in self._first_token_at:
            return

        seconds = self._last_token_at[index] - self._first_token_at[index]
        metrics.decode_time_s.observe(seconds)
        if text.num_tokens > 1:
            metrics.time_per_output_token_s.observe(seconds / (text.num_tokens - 1))

    def request_ended(self, outcome: str, num_cached: int) -> None:
        """The request has ended with this outcome of the metrics. `num_cached` of its prompt tokens were cached."""
        self._metrics.num_cached_tokens += num_cached
        self._metrics.requests.labels(outcome).inc()
        if outcome == "ok":
            self._metrics.e2e_request_latency_s.observe(self.seconds)

    def timeline(self, of_workers: Iterable[Stamp]) -> list[dict[str, Any]] | None:
        """All stamps in order, in milliseconds since the request arrived; None unless the client asked for them."""
        if not self.with_timeline:
            return None
        stamps = dict.fromkeys((*self._stamps, *of_workers))  # two workers may report the same moment
        return [
            {"name": each.name, "at_ms": round((each.at - self._received_at) * 1e3, 3), "worker": each.worker_id}
            for each in sorted(stamps, key=lambda each: each.at)
        ]


class Generation:
    """Answers `prompts`. Choice c of prompt p has the index p * n + c. `x_request_id`: the header, for the log."""

    def __init__(
        self,
        response_id: str,
        prompts: Sequence[Prompt],
        new_detokenizer: Callable[[Sequence[int], bool], Detokenizer],
        dispatch: Dispatch,
        times: Times,
        x_request_id: str = "",
    ) -> None:
        self.response_id = response_id
        self.times = times
        self.num_choices = sum(prompt.num_choices for prompt in prompts)
        self.num_prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self.error: BatonError | None = None

        self._prompts, self._dispatch, self._x_request_id = prompts, dispatch, x_request_id
        self._texts = [
            ChoiceText(
                new_detokenizer(prompt.token_ids, prompt.skip_special),
                prompt.stops,
                prompt.sampling.min_tokens,
                len(prompt.echo.text) if prompt.echo is not None else 0,
            )
            for prompt in prompts
            for _ in range(prompt.num_choices)
        ]
        self._echoed: set[int] = set()  # choices whose answer has begun with the prompt
        self._num_open = self.num_choices

        self._records: list[RequestRecord] = []  # one for each prompt that is assigned
        self._pieces: Batch = []
        self._num_waiting = 0  # tokens of these pieces
        self._max_backlog = 0
        self._on_full: Callable[[], None] | None = None
        self.is_held = False  # the connection accepts nothing now: new pieces wait

        self._news = asyncio.Event()
        self._outcome = ""  # as in the metrics, once it is there
        self._fault: Exception | None = None
        self.on_end: Callable[[], None] = lambda: None  # called when the answer is over, however it ended

    # ---- for the HTTP side ----

    async def start(self) -> None:
        """Assigns every prompt, or none. Unavailable when one of them finds no workers."""
        self.times.stamp("tokenised")
        try:
            await self._assign_all()
        except BaseException:
            self._cancel_all()
            self.on_end()
            raise
        self.times.assigned(self._prompts)

    async def _assign_all(self) -> None:
        """Lets other requests run after every TURN_TOKENS tokens of prompts."""
        num_tokens = 0
        for place, prompt in enumerate(self._prompts):
            num_tokens += len(prompt.token_ids)
            if num_tokens > TURN_TOKENS:
                num_tokens = len(prompt.token_ids)
                await asyncio.sleep(0)

            request_id, first_choice = f"{self.response_id}-{place}", place * prompt.num_choices
            record = self._dispatch.assign(request_id, prompt, self, self.times.with_timeline, first_choice)
            self._records.append(record)
            for index in range(first_choice, first_choice + prompt.num_choices):
                if self._texts[index].finish_reason == ABORT:  # before its prompt was assigned
                    self._cancel(index)
            if (wrong := self.error or self._fault) is not None:  # of a prompt that was assigned before
                raise wrong

    async def batches(self) -> AsyncIterator[Batch]:
        """Yields what the choices gained since the last batch. Ends when all have finished, one failed, or the client
        left."""
        while True:
            await self._news.wait()
            self._news.clear()

            if self._fault is not None:
                raise self._fault
            if self._outcome == CANCELLED:
                return

            if self._pieces:
                batch, self._pieces, self._num_waiting = self._pieces, [], 0
                yield batch

            if not self._pieces and (self.error is not None or self._num_open == 0):
                self._end("ok" if self.error is None else self.error.code)
                return

    def bound_backlog(self, max_tokens: int, on_full: Callable[[], None]) -> None:
        """While `is_held`, at most `max_tokens` wait. Beyond that the generation ends as if the client had left, and
        `on_full` is called."""
        self._max_backlog, self._on_full = max_tokens, on_full

    @property
    def is_complete(self) -> bool:
        """Whether every choice has finished."""
        return self._num_open == 0 and self.error is None and self._outcome != CANCELLED

    @property
    def is_drained(self) -> bool:
        """Whether it is complete and every piece has been taken."""
        return self.is_complete and not self._pieces

    def abandon(self) -> None:
        """Ends the generation: the client has left, or has its whole answer."""
        if self._num_open and self.error is None:
            self._leave()
        self._news.set()
        self.on_end()

    def _leave(self) -> None:
        self._cancel_all()
        self._end(CANCELLED)

    def abort(self, choices: Iterable[int]) -> None:
        """Ends these choices. Each keeps what it has, and its finish reason is ABORT."""
        for index in choices:
            text = self._texts[index]
            if text.finish_reason is None and self.error is None and not self._outcome:
                self._cancel(index)
                self._add(index, text.end(ABORT))

    def prompt_of(self, index: int) -> int:
        """The place of the prompt that this choice continues."""
        return index // self._prompts[0].num_choices

    def cut_by(self, index: int) -> str | None:
        """The stop string that has ended this choice."""
        return self._texts[index].stop_string

    def prompt_tokens_of(self, index: int) -> tuple[int, int]:
        """(tokens of the prompt of this choice, how many of them were not computed because workers had their KV)."""
        place = self.prompt_of(index)
        return len(self._prompts[place].token_ids), self._records[place].num_cached

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices until now."""
        return sum(text.num_tokens for text in self._texts)

    @property
    def num_scored(self) -> int:
        """Prompt tokens whose log-probabilities the answer tells, once for each choice."""
        return sum(prompt.num_choices * len(prompt.token_ids) for prompt in self._prompts if prompt.prompt_logprobs)

    @property
    def num_cached(self) -> int:
        """Prompt tokens that workers have not computed, because they had their KV."""
        return sum(record.num_cached for record in self._records)

    @property
    def usage(self) -> dict[str, Any]:
        """The usage object until now."""
        return self.usage_at(self.num_tokens)

    def usage_at(self, num_tokens: int) -> dict[str, Any]:
        """The usage object when the choices had `num_tokens` tokens together."""
        return usage_of(self.num_prompt_tokens, num_tokens, self.num_cached)

    def timeline(self) -> list[dict[str, Any]] | None:
        """The time line of gateway and workers; None unless the client asked for it."""
        return self.times.timeline(stamp for record in self._records for stamp in record.stamps)

    # ---- for the worker side ----

    def on_tokens(self, delivery: Delivery) -> None:
        """See requests.Listener. A fault of the gateway itself ends this request: `batches` raises it."""
        try:
            self._take(*delivery)
        except Exception as fault:  # noqa: BLE001 - other requests of the same message must get their tokens
            self._fault, self._outcome = fault, InternalError.code  # the metrics count it where it is caught
            self._cancel_all()
            self._news.set()

    def _take(
        self,
        index: int,
        token_ids: tuple[int, ...],
        finish: FinishReason | None,
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> None:
        text, prompt = self._texts[index], self._prompts[self.prompt_of(index)]
        if text.finish_reason is not None or self.error is not None:
            return

        if prompt.echo is not None and index not in self._echoed:
            self._echoed.add(index)
            self._pieces.append((index, self._echo(index, prompt.echo)))
        num_before = text.num_tokens
        piece = text.end(str(FinishReason.LENGTH)) if prompt.is_echoed_only else text.feed(token_ids, finish, logprobs)
        self.times.tokens(index, text.num_tokens - num_before)
        if text.hit_stop_string:
            self._cancel(index)
        self._add(index, piece)

        if self.is_held and self._on_full is not None and self._num_waiting > self._max_backlog:
            self._pieces, self._num_waiting = [], 0
            self._leave()
            self._on_full()

    def prompt_part(self, index: int) -> PromptPart | None:
        """The log-probabilities of the prompt of a choice, if they are asked for. None, too, where the choice was
        aborted before they were there."""
        place = self.prompt_of(index)
        part = self._records[place].prompt_part if place < len(self._records) else None
        return part if part is not None and part.missing is None else None

    def _echo(self, index: int, echo: Echo) -> Piece:
        """The prompt, as an answer begins with it."""
        part = self.prompt_part(index)
        told = EchoedTokens(part, echo) if part is not None and echo.offsets is not None else ()
        return Piece(echo.text, (), None, told)

    def _add(self, index: int, piece: Piece) -> None:
        """A choice has gained this piece."""
        self._pieces.append((index, piece))
        self._num_waiting += len(piece.token_ids)
        if piece.finish_reason is not None:
            self.times.choice_ended(index, self._texts[index])
            self._num_open -= 1
            if self._num_open == 0:
                self.times.stamp("done")
        self._news.set()

    def on_failed(self, error: BatonError) -> None:
        """See requests.Listener. The whole request fails because one prompt failed."""
        if self.error is None and self._num_open:
            self.error = error
            self._cancel_all()
            self._news.set()

    def _end(self, outcome: str) -> None:
        """Counts and logs the outcome, once. The log gets numbers and names only, never what client or model wrote."""
        if self._outcome:
            return
        self._outcome = outcome
        self.times.request_ended(outcome, self.num_cached)
        error, records = self.error, self._records
        fields = {
            "request_id": ",".join(record.request_id for record in records[:MAX_LOGGED]),
            "attempt": max((record.num_attempts for record in records), default=1) - 1,
            "worker": ",".join(dict.fromkeys(pair for record in records[:MAX_LOGGED] for pair in record.pairs)),
            "x_request_id": self._x_request_id,
            "prompt_tokens": self.num_prompt_tokens,
            "choices": self.num_choices,
            "tokens_out": self.num_tokens,
            "outcome": outcome,
            "seconds": round(self.times.seconds, 3),
        }

        if error is None:
            log.debug("request ended", **fields)
        else:
            # The message of a BadRequest may quote the client.
            why = error.code if isinstance(error, BadRequest) else error.message
            tell = log.info if isinstance(error, Overloaded) else log.warning  # a full line is no fault
            tell("request failed", **fields, why=why)

    def _cancel(self, index: int) -> None:
        """The workers stop this choice."""
        place = self.prompt_of(index)
        if place < len(self._records):
            record = self._records[place]
            self._dispatch.cancel(record.request_id, index - record.first_choice)

    def _cancel_all(self) -> None:
        for record in self._records:
            self._dispatch.cancel(record.request_id)
