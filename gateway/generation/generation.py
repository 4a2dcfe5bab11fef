"""One client request while it is answered: its prompts at the workers, what its choices gain.

Steps of choices are collected here between two turns of the loop and taken in batches.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from gateway.generation.call_prompts import CallPrompts, EchoedTokens
from gateway.generation.times import Times
from gateway.generation.translate import PreparedPrompt
from gateway.routing.dispatch import Dispatch
from gateway.routing.requests import Delivery
from gateway.text.detokenizer import Detokenizer
from gateway.text.echo import Echo
from gateway.text.pipeline import Pipeline
from gateway.words.events import Batch, Reason, Step, TextDelta, Usage
from protocol.errors import BadRequest, BatonError, InternalError, Overloaded
from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import FinishReason
from runtime.log import get_log

log = get_log("gateway.generation")
TURN_TOKENS = 64 * 1024  # tokens of prompts that are assigned in one turn of the loop
PROMPT_TOKENS = 1024  # what a prompt counts for there at least
MAX_LOGGED = 8  # prompts that the log line of one call names
CANCELLED = "cancelled"  # the outcome when the client has left


class Generation:
    """Answers `prompts`, whose choices are numbered as in CallPrompts. `x_request_id`: the header, for the log."""

    def __init__(
        self,
        response_id: str,
        prompts: Sequence[PreparedPrompt],
        new_detokenizer: Callable[[Sequence[int], bool], Detokenizer],
        dispatch: Dispatch,
        times: Times,
        x_request_id: str = "",
    ) -> None:
        self.response_id = response_id
        self.times = times
        self.prompts = CallPrompts(prompts)
        self.error: BatonError | None = None

        self._dispatch, self._x_request_id = dispatch, x_request_id
        of_choices = [prompt for prompt in prompts for _ in range(prompt.num_choices)]
        self._pipelines = [
            Pipeline(
                new_detokenizer(prompt.token_ids, prompt.skip_special),
                prompt.stops,
                prompt.sampling.min_tokens,
                len(prompt.echo.text) if prompt.echo is not None else 0,
                None if prompt.channels is None else prompt.channels.channels(response_id, index),
            )
            for index, prompt in enumerate(of_choices)
        ]
        self._echoed: set[int] = set()  # choices whose answer has begun with the prompt
        self._echoes: dict[int, EchoedTokens] = {}  # by place of the prompt
        self._num_open = self.prompts.num_choices

        self._steps: Batch = []
        self._num_waiting = 0  # tokens of these Steps
        self._max_backlog = 0
        self._on_full: Callable[[], None] | None = None
        self.is_held = False  # the connection accepts nothing now: new Steps wait

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
        self.times.assigned(self.prompts.all)

    async def _assign_all(self) -> None:
        """Lets other requests run after every TURN_TOKENS tokens of prompts, short ones counted as longer."""
        num_tokens = 0
        for position, prompt in enumerate(self.prompts.all):
            num_own = max(len(prompt.token_ids), PROMPT_TOKENS)
            num_tokens += num_own
            if num_tokens > TURN_TOKENS:
                num_tokens = num_own
                await asyncio.sleep(0)

            request_id, first_choice = f"{self.response_id}-{position}", position * prompt.num_choices
            record = self._dispatch.assign(request_id, prompt, self, self.times.with_timeline, first_choice)
            self.prompts.records.append(record)
            for index in range(first_choice, first_choice + prompt.num_choices):
                if self._pipelines[index].finish is not None:  # aborted before its prompt was assigned
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

            if self._steps:
                batch, self._steps, self._num_waiting = self._steps, [], 0
                yield batch

            if not self._steps and (self.error is not None or self._num_open == 0):
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
        """Whether it is complete and every Step has been taken."""
        return self.is_complete and not self._steps

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
            pipeline = self._pipelines[index]
            if pipeline.finish is None and self.error is None and not self._outcome:
                self._cancel(index)
                self._add(index, pipeline.end(Reason.ABORT))

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices until now."""
        return sum(pipeline.num_tokens for pipeline in self._pipelines)

    @property
    def usage(self) -> Usage:
        """What the request has used until now."""
        num_reasoning = sum(pipeline.num_reasoning for pipeline in self._pipelines)
        return Usage(self.prompts.num_tokens, self.prompts.num_cached, self.num_tokens, num_reasoning)

    def timeline(self) -> list[dict[str, Any]] | None:
        """The time line of gateway and workers; None unless the client asked for it."""
        return self.times.timeline(stamp for record in self.prompts.records for stamp in record.stamps)

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
        pipeline, prompt = self._pipelines[index], self.prompts.of(index)
        if pipeline.finish is not None or self.error is not None:
            return

        if prompt.echo is not None and index not in self._echoed:
            self._echoed.add(index)
            self._steps.append((index, self._echo(index, prompt.echo)))
        num_before = pipeline.num_tokens
        is_echo = prompt.is_echoed_only
        step = pipeline.end(Reason.LENGTH) if is_echo else pipeline.feed(token_ids, finish, logprobs)
        self.times.tokens(index, pipeline.num_tokens - num_before)
        if pipeline.is_cut:
            self._cancel(index)
        self._add(index, step)

        if self.is_held and self._on_full is not None and self._num_waiting > self._max_backlog:
            self._steps, self._num_waiting = [], 0
            self._leave()
            self._on_full()

    def _echo(self, index: int, echo: Echo) -> Step:
        """The prompt, as an answer begins with it."""
        position, part = self.prompts.place_of(index), self.prompts.part(index)
        events = (TextDelta(echo.text),) if echo.text else ()
        if part is None or echo.offsets is None:
            return Step(events)
        if position not in self._echoes:
            self._echoes[position] = EchoedTokens(part, echo, self.prompts.all[position].num_choices > 1)
        return Step(events, shown=self._echoes[position])

    def _add(self, index: int, step: Step) -> None:
        """A choice has gained this."""
        self._steps.append((index, step))
        self._num_waiting += len(step.token_ids)
        if step.finish is not None:
            self.times.choice_ended(index, step.finish.reason, self._pipelines[index].num_tokens)
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
        self.times.request_ended(outcome, self.prompts.num_cached)
        error, records = self.error, self.prompts.records
        fields = {
            "request_id": ",".join(record.request_id for record in records[:MAX_LOGGED]),
            "attempt": max((1, *(record.num_attempts for record in records))) - 1,
            "worker": ",".join(dict.fromkeys(pair for record in records[:MAX_LOGGED] for pair in record.pairs)),
            "x_request_id": self._x_request_id,
            "prompt_tokens": self.prompts.num_tokens,
            "choices": self.prompts.num_choices,
            "tokens_out": self.num_tokens,
            "outcome": outcome,
            "seconds": round(self.times.seconds, 3),
        }

        if error is None:
            log.debug("request ended", **fields)
        else:
            # The message of a BadRequest may quote the client.
            reason = error.code if isinstance(error, BadRequest) else error.message
            tell = log.info if isinstance(error, Overloaded) else log.warning  # a full line is no fault
            tell("request failed", **fields, why=reason)

    def _cancel(self, index: int) -> None:
        """The workers stop this choice."""
        if (record := self.prompts.record_of(index)) is not None:
            self._dispatch.cancel(record.request_id, index - record.first_choice)

    def _cancel_all(self) -> None:
        for record in self.prompts.records:
            self._dispatch.cancel(record.request_id)
