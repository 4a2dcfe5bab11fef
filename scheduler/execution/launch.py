"""A forward in flight, and its result."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from model.inputs import ModelInput, padding
from model.sampling_input import NOT_A_TOKEN, NOTHING_LEFT
from protocol.errors import GroupBroken, as_baton_error
from protocol.logprobs import Logprobs, LogprobsAsked
from protocol.messages_group import StepShape
from scheduler.execution.answers import Masking
from scheduler.execution.batches import ForwardBatch, Relay, ScheduleBatch, asked_of, owners_drawn
from scheduler.execution.device import Device
from scheduler.execution.histories import seeds_of
from scheduler.execution.prompt_scores import pieces_of_prompts, prompt_rows, scores_of
from scheduler.execution.streams import Event, Stream, first_line
from scheduler.plan import Chunk, Owner, Plan, Scores, StepResult

Runs = tuple[tuple[int, ...], ...]
NO_TOKENS: Final = frozenset({NOT_A_TOKEN, NOTHING_LEFT})


class WrittenLayer(NamedTuple):
    """A layer whose KV a launch has written once `event` is done."""

    layer: int
    event: Event


@dataclass(eq=False)
class Launch:
    """A forward in flight. Once `copy_done` is done, `tokens_L` or `error` is set. It has no `batch` if none could be
    built; then `error` is set from the start. A kind of launch adds what its segments pass on."""

    ticket: int
    owners: tuple[Owner, ...]  # of the rows that it draws tokens for
    relay: Relay
    ships: bool
    step: StepShape  # what all ranks have announced, this one included
    asked: tuple[LogprobsAsked | None, ...] = ()  # of each owner; (): nobody asks for log-probabilities
    masking: Masking | None = None  # the masks of its rows with grammars; None: there are none
    batch: ForwardBatch | None = None
    written_pages_N: Tensor | None = None  # pages to stage to the host, layer by layer
    copy_done: Event | None = None
    tokens_L: Tensor | None = None  # on the host
    logprobs: Tensor | None = None  # on the host: what score() gives for the rows that ask, flat; None: none does
    scores: tuple[Scores, ...] = ()  # the tokens of prompts that it scores
    prompt_words: Tensor | None = None  # on the host: what scored_forward() gives for these; None: there are none
    error: Exception | None = None
    computed_at: float | None = None  # when all layers were computed; None: the host cannot tell
    layers: deque[WrittenLayer] = field(default_factory=deque)  # filled while it runs, taken by the executor

    @classmethod
    def of(cls, plan: Plan, running: ScheduleBatch, step: StepShape, masking: Masking | None, **more: Any) -> Self:
        """The launch of `plan`, which is applied, without a batch. `more`: what its kind adds."""
        owners, relay, asked = owners_drawn(plan, running), Relay.of(plan, running), asked_of(plan, running)
        return cls(plan.ticket, owners, relay, plan.ships, step, asked, masking, **more)

    def build(
        self,
        plan: Plan,
        running: ScheduleBatch,
        device: Device,
        make: Callable[[], ForwardBatch],
        ship: Callable[["Launch", tuple[Chunk, ...]], None],
    ) -> None:
        """Makes its batch: what its kind can `make`, with scores of prompts and seeds. `ship`: see Shipping.prepare."""
        try:
            if device.debug:
                running.check_mirrors()
            batch, on = make(), device.kv.device
            self.scores, scored = scores_of(plan.chunks), prompt_rows(plan.chunks, on)
            self.batch = replace(batch, step=self.step, seeds_3S=seeds_of(plan, on), scored=scored)
            size, announced = batch.input.input_ids_T.numel(), self.step.num_tokens[device.rank]
            assert size == announced, f"{size} tokens, announced were {announced}"
            if plan.ships:
                ship(self, plan.chunks)
        except Exception as error:  # noqa: BLE001 - a launch that cannot be built fails only its own rows
            self.batch, self.error = None, error

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that its forward reads. They were made on the schedule stream."""
        inputs = () if self.batch is None else self.batch.tensors
        written = () if self.written_pages_N is None else (self.written_pages_N,)
        return (*self.relay, *inputs, *written)

    def padding(self, device: Device) -> ModelInput:
        """As many tokens of padding. Nobody wants their logits, which for a long prompt would take gigabytes.

        It is made on the forward stream, within a segment, so that stream's memory may be used for it.
        """
        inp = padding(self.step.num_tokens[device.rank], 1, device.kv.layout.page_size, device.kv.device)
        return replace(inp, step=self.step, logit_indices_L=inp.logit_indices_L[:0])

    def runs(self, tokens: Sequence[int]) -> Runs:
        """What each row has drawn, from the launch's tokens (L)."""
        return tuple(zip(tokens, strict=True))

    @property
    def num_scored(self) -> Sequence[int]:
        """Rows of `logprobs` that each owner has, if it asks: the first ones are those of its run."""
        return [1] * len(self.owners)

    def logprobs_of(self, runs: Runs, forward: Stream) -> tuple[Logprobs | None, ...]:
        """The log-probabilities of StepResult."""
        if self.logprobs is None:
            return ()
        sizes = [0 if asked is None else size for size, asked in zip(self.num_scored, self.asked, strict=True)]
        words = np.array(forward.read_host(self.logprobs), dtype="<i4").reshape(sum(sizes), -1)
        logprobs, start = list[Logprobs | None](), 0
        for asked, run, size in zip(self.asked, runs, sizes, strict=True):
            if asked is None:
                logprobs.append(None)
                continue
            num_top = min(asked.num_top, words.shape[1] // 2 - 1)
            logprobs.append(Logprobs(num_top, words[start : start + len(run), : 2 + 2 * num_top].tobytes()))
            start += size
        return tuple(logprobs)

    def prompts(self, forward: Stream) -> tuple[tuple[Logprobs, ...], ...]:
        """The log-probabilities of prompts of StepResult."""
        return () if self.prompt_words is None else pieces_of_prompts(self.scores, forward.read_host(self.prompt_words))

    def hidden(self, forward: Stream) -> tuple[bytes, ...]:
        """The hidden states of StepResult. Without a draft there are none."""
        return ()

    def result(self, forward: Stream) -> StepResult:
        """Its result, once it is over. `forward` is the stream that it ran on."""
        if self.error is not None:
            return StepResult(self.ticket, (), (), error=as_baton_error(self.error).message)
        assert self.tokens_L is not None
        tokens = forward.read_host(self.tokens_L)
        runs, not_finite, stuck = self.runs(tokens), list[Owner](), list[tuple[Owner, str]]()
        late = () if self.masking is None else self.masking.late
        if NOT_A_TOKEN in tokens or NOTHING_LEFT in tokens:
            for index, run in enumerate(runs):
                reason = self.masking.why_stuck(index) if self.masking is not None and NOTHING_LEFT in run else ""
                if index in late:
                    continue
                if reason:
                    stuck.append((self.owners[index], reason))
                elif not NO_TOKENS.isdisjoint(run):
                    not_finite.append(self.owners[index])
            runs = tuple(tuple(takewhile(lambda token: token not in NO_TOKENS, run)) for run in runs)
        return StepResult(
            self.ticket,
            self.owners,
            runs,
            tuple(not_finite),
            tuple(stuck),
            tuple([self.owners[index] for index in sorted(late)]),
            hidden=self.hidden(forward),
            computed_at=self.computed_at,
            logprobs=self.logprobs_of(runs, forward),
            prompts=self.prompts(forward),
        )

    def tell_masking(self, forward: Stream) -> None:
        """It is over: tells the answers of its grammars what it has drawn, once."""
        if self.masking is not None and not self.masking.is_over:
            tokens_L = None if self.error is not None else self.tokens_L
            self.masking.over(() if tokens_L is None else self.runs(forward.read_host(tokens_L)))


@contextmanager
def failures_of(launch: Launch) -> Iterator[None]:
    """Stores a failure in its launch; the stream goes on."""
    try:
        with torch.inference_mode():
            yield
    except Exception as error:  # noqa: BLE001 - the top of the forward loop: fails this launch's rows and goes on
        launch.error = launch.error or error


@contextmanager
def failures_of_target(launch: Launch, device: Device) -> Iterator[None]:
    """The same around the target's forward. Other ranks of its group compute it, too: a failure breaks the group."""
    try:
        with torch.inference_mode():
            yield
    except Exception as error:  # noqa: BLE001 - as in failures_of
        launch.error = launch.error or error
        if len(launch.step.num_tokens) > 1:
            reason = f"step {launch.step.step} has failed: {first_line(error)}"
            device.group_error = error if isinstance(error, GroupBroken) else GroupBroken(reason)
