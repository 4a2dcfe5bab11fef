"""Launches with a draft: two sequences of segments. The host prepares the next launch while the second one runs.

    write, propose, verify, publish | extend      a launch that proposes
    propose, verify, extend                       one that proposes nothing: the host knows the lengths behind it
    propose, verify, extend, write                the same, with chunks of prompts
    resolve, compute, sample                      one without rows that have a draft: see PlainLaunches

The lengths that the next launch needs are published behind `verify`. Until then its plan waits in Executor.submitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from protocol.messages_group import StepShape
from scheduler.execution.answers import Masking
from scheduler.execution.batches import ForwardBatch, ScheduleBatch
from scheduler.execution.future_rows import DraftInput
from scheduler.execution.launch import Launch, Runs, failures_of, failures_of_target
from scheduler.execution.launches import PlainLaunch, PlainLaunches
from scheduler.execution.shipping import Shipping
from scheduler.execution.streams import Stream
from scheduler.plan import Plan
from scheduler.speculation.draft_rows import DraftRows
from scheduler.speculation.mode import AnyMode, DraftParts, OnLayer, hidden_bytes
from scheduler.speculation.unread import Unread


@dataclass(eq=False)
class DraftLaunch(Launch):
    """What its segments pass on. `draft`, `proposed` and `verified` are what `mode` made of the launch, so far."""

    mode: AnyMode = field(kw_only=True)
    draft: Any = None
    proposed: Any = None
    verified: Any = None
    shipped: Tensor | None = None  # on the host; see Verified

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that its forwards read."""
        return (*super().tensors, *(self.draft.tensors if self.draft is not None else ()))

    def runs(self, tokens: Sequence[int]) -> Runs:
        """What each row has drawn, from the launch's tokens (L)."""
        rows: DraftRows = self.draft.rows
        return rows.runs(tokens)

    @property
    def num_scored(self) -> Sequence[int]:
        """See Launch."""
        rows: DraftRows = self.draft.rows
        return [1] * rows.num_draws + [rows.width] * (len(self.owners) - rows.num_draws)

    def hidden(self, forward: Stream) -> tuple[bytes, ...]:
        """The hidden states that ship."""
        if self.shipped is None:
            return ()
        return hidden_bytes(forward.read_host(self.shipped), len(self.draft.rows.shipped_N))


class DraftLaunches:
    """`proposing` is the mode of launches that propose, `quiet` of those that do not. `plain` has those without a
    draft."""

    def __init__(self, parts: DraftParts, proposing: AnyMode, quiet: AnyMode) -> None:
        assert parts.device.kv.layout.lookahead, "a draft's KV depends on tokens after its own"
        self._device = parts.device
        self._draft, self._unwritten = parts.draft, parts.unwritten
        self._proposing, self._quiet, self.plain = proposing, quiet, PlainLaunches(parts.device)
        self._shipping = Shipping(parts.device)
        self._unread = Unread()
        self._publishes = True  # the newest launch; if not, the host knows all lengths

    def no_rows(self) -> ScheduleBatch:
        """A batch without rows."""
        return ScheduleBatch.of((), self._device.kv.device, speculates=True)

    def applied(self, plan: Plan, running: ScheduleBatch) -> None:
        """Tells the FutureMap of the rows whose lengths the host knows.

        A plan that follows one without proposals knows all lengths, and which rows have ended.
        """
        self._unread.joined(plan)
        if not plan.drafts:
            running.forget_drafts()
        if self._publishes:
            self._device.future_map.seed_seq_lens(plan.joins, self._device.schedule)
        else:
            running.spec_info = DraftInput.known(running.rows_B) if plan.drafts else None

    def is_ready(self, plan: Plan, running: ScheduleBatch, masking: Masking | None) -> bool:
        """Whether the newest launch has published its lengths, and the masks are there: with a draft the target samples
        within a segment, before lengths are published."""
        has_masks = masking is None or masking.is_done or not plan.drafts
        return has_masks and self._device.future_map.is_ready(running)

    def sample_masked(self, launch: Launch) -> bool:
        """Only launches without a draft wait for masks."""
        return not isinstance(launch, PlainLaunch) or self.plain.sample_masked(launch)

    def num_tokens(self, plan: Plan) -> int:
        """Those of its chunks, and those of each row that its mode verifies."""
        return plan.num_tokens(self._mode(plan).num_verified(plan))

    def _mode(self, plan: Plan) -> AnyMode:
        return self._proposing if plan.num_steps else self._quiet

    def write_draft(self) -> None:
        """On the forward stream: writes the draft's KV that waits."""
        with torch.inference_mode():
            self._unwritten.write(self._draft, self._device.kv)

    def enqueue(self, plan: Plan, running: ScheduleBatch, step: StepShape, masking: Masking | None) -> Launch:
        """Enqueues the segments of a launch."""
        if self._publishes:
            self._device.future_map.resolve_seq_lens_cpu(running, self._device.schedule)
        if plan.drafts:
            return self._enqueue_draft(plan, running, step, masking)
        self._publishes = False
        return self.plain.enqueue(plan, running, step, masking)

    def _enqueue_draft(
        self, plan: Plan, running: ScheduleBatch, step: StepShape, masking: Masking | None
    ) -> DraftLaunch:
        device, proposes, mode = self._device, plan.num_steps > 0, self._mode(plan)
        launch = DraftLaunch.of(plan, running, step, masking, mode=mode)

        def batch() -> ForwardBatch:
            batch, launch.draft = mode.build(plan, running, self._unread.begins(plan, running))
            if masking is None:
                return batch
            first_logits = partial(launch.draft.rows.first_logits, mode.num_verified(plan))
            allowed = masking.allowed(first_logits, device.kv.device)
            return replace(batch, sampling=replace(batch.sampling, allowed=allowed))

        launch.build(plan, running, device, batch, self._shipping.prepare)
        if proposes:
            before = [self.write, self.propose, self.verify, self.publish]
            device.future_map.expect(device.enqueue(before, launch))
            launch.copy_done = device.enqueue([self.extend], launch)
            running.spec_info = DraftInput.launched(running.rows_B)
        else:
            segments = [self.propose, self.verify, self.extend]
            launch.copy_done = device.enqueue([*segments, self.write] if plan.chunks else segments, launch)
            running.spec_info = DraftInput.known(running.rows_B)
        self._publishes = proposes
        self._unread.launched(plan, running.members.owners)
        return launch

    # ---- segments: on the forward stream ----

    def write(self, launch: DraftLaunch) -> None:
        """Writes what was put off, even if the launch could not be built: see planning/draft_writes.py."""
        with failures_of(launch):
            self._unwritten.write(self._draft, self._device.kv)

    def propose(self, launch: DraftLaunch) -> None:
        """The draft proposes, unless KV that it reads could not be written."""
        if launch.batch is not None and launch.error is None:
            with failures_of(launch):
                launch.proposed = launch.mode.propose(launch.draft)

    def verify(self, launch: DraftLaunch) -> None:
        """The target computes and draws. If the launch cannot be built, it computes padding, as PlainLaunches do."""
        device = self._device
        with failures_of_target(launch, device):
            device.check_group()
            if launch.batch is None or launch.proposed is None:
                device.runner.forward_with_features(launch.padding(device), device.kv)
                return
            verified = launch.mode.verify(launch.batch, launch.draft, launch.proposed, self._on_layer(launch))
            self._remember(launch, verified.tokens_L)
            launch.tokens_L = device.forward.to_host(verified.tokens_L)
            if verified.logprobs_NW is not None:
                launch.logprobs = device.forward.to_host(verified.logprobs_NW.flatten())
            if verified.prompt_words is not None:
                launch.prompt_words = device.forward.to_host(verified.prompt_words)
            if launch.ships:
                launch.shipped = device.forward.to_host(verified.shipped)
            launch.verified = verified
            if device.forward_clock is not None:
                launch.computed_at = device.forward_clock.now()
        launch.proposed = None

    def _remember(self, launch: DraftLaunch, tokens_L: Tensor) -> None:
        """Adds the drawn tokens to the contexts that rules of the next launch read."""
        assert launch.batch is not None
        rules, (rows_L, _, seq_lens_L) = launch.batch.sampling.rules, launch.relay
        if rules is not None and rules.reads_context and rows_L.numel():
            rows: DraftRows = launch.draft.rows
            self._device.histories.write(*rows.places(rows_L, seq_lens_L), tokens_L)

    def publish(self, launch: DraftLaunch) -> None:
        """Publishes the lengths behind the launch. The next one waits for them, so a launch that has failed publishes
        those that it was given."""
        rows_L, owners_L, seq_lens_L = launch.relay
        if launch.verified is not None and rows_L.numel():
            with failures_of(launch):
                seq_lens_B, num_draws = launch.verified.seq_lens_B, launch.draft.rows.num_draws
                seq_lens_L = torch.cat((seq_lens_L[:num_draws], seq_lens_B)) if num_draws else seq_lens_B
        self._device.future_map.publish(rows_L, seq_lens_L, owners_L)

    def extend(self, launch: DraftLaunch) -> None:
        """Stashes what the next launch reads: after a failure a token that is ignored, and no proposal."""
        rows_L, owners_L, _ = launch.relay
        tokens_L, extras = torch.zeros_like(rows_L), None
        if launch.batch is not None and launch.verified is not None:
            with failures_of(launch):
                tokens_L, extras = launch.mode.extend(
                    launch.batch, launch.draft, launch.verified, self._on_layer(launch)
                )
        launch.verified = None
        self._device.future_map.stash(rows_L, tokens_L, owners_L, extras)

    def _on_layer(self, launch: DraftLaunch) -> OnLayer:
        return partial(self._shipping.layer_written, launch) if launch.ships else None
