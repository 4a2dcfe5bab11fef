"""A forward in flight, and its result."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from model.inputs import ModelInput
from model.sampler import NOT_A_TOKEN
from protocol.errors import as_baton_error
from scheduler.execution.batches import ForwardBatch, Relay
from scheduler.execution.streams import Event, Stream
from scheduler.plan import Owner, StepResult
from scheduler.speculation.draft_batch import DraftBatch
from scheduler.speculation.draft_segments import Proposed, Verified, hidden_bytes


@dataclass(eq=False)
class Launch:
    """A forward in flight. Once `copy_done` is done, `tokens_L` or `error` is set. It has no `batch` if none could be
    built; then `error` is set from the start."""

    ticket: int
    owners: tuple[Owner, ...]  # of the rows that it draws tokens for
    relay: Relay
    ships: bool
    publishes: bool  # it proposes, so only the device knows the lengths behind it
    batch: ForwardBatch | None = None
    written_pages_N: Tensor | None = None  # pages to stage to the host, layer by layer
    copy_done: Event | None = None
    tokens_L: Tensor | None = None  # on the host
    error: Exception | None = None
    computed_at: float | None = None  # when all layers were computed; None: the host cannot tell
    layers: deque[tuple[int, Event]] = field(default_factory=deque)  # (layer, its KV is written), filled while it runs
    input: ModelInput | None = None  # passed between segments, as are the logits
    logits_LV: Tensor | None = None
    draft: DraftBatch | None = None  # with a draft
    proposed: Proposed | None = None  # passed between segments, as is what was verified
    verified: Verified | None = None
    shipped: Tensor | None = None  # on the host; see Verified

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that its forward reads. They were made on the schedule stream."""
        batches = [tensor for batch in (self.batch, self.draft) if batch is not None for tensor in batch.tensors]
        written = () if self.written_pages_N is None else (self.written_pages_N,)
        return (*self.relay, *batches, *written)

    def result(self, forward: Stream) -> StepResult:
        """Its result, once it is over. `forward` is the stream that it ran on."""
        if self.error is not None:
            return StepResult(self.ticket, (), (), error=as_baton_error(self.error).message)
        assert self.tokens_L is not None
        tokens = forward.read_host(self.tokens_L)
        runs: tuple[tuple[int, ...], ...]
        runs = self.draft.runs(tokens) if self.draft is not None else tuple(zip(tokens, strict=True))
        not_finite: tuple[Owner, ...] = ()
        if NOT_A_TOKEN in tokens:
            not_finite = tuple(each for each, run in zip(self.owners, runs, strict=True) if NOT_A_TOKEN in run)
            runs = tuple(run[: run.index(NOT_A_TOKEN)] if NOT_A_TOKEN in run else run for run in runs)
        hidden: tuple[bytes, ...] = ()
        if self.shipped is not None and self.draft is not None and self.draft.shipped_N is not None:
            hidden = hidden_bytes(forward.read_host(self.shipped), len(self.draft.shipped_N))
        return StepResult(self.ticket, self.owners, runs, not_finite, hidden=hidden, computed_at=self.computed_at)


@contextmanager
def failures_of(launch: Launch) -> Iterator[None]:
    """Stores a failure in its launch; the stream goes on."""
    try:
        with torch.inference_mode():
            yield
    except Exception as error:  # noqa: BLE001 - the top of the forward loop: fails this launch's rows and goes on
        launch.error = error
